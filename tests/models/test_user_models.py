"""User models and data: they are the same on every rank and in every run, and those of the page work."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.command_lines import script
from helpers.printed import ROOT, blocks, write_examples
from torch import Tensor, nn

import dpexp
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.tensors import digest

SHORT = ["--no-track", "--steps", "3", "--warmup", "1", "--phase-steps", "1"]
PAGE = "docs/models-and-data.md"


def test_a_log_of_clicks_is_data(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "click_logs.py")
    subprocess.run([sys.executable, program, "clicks.tsv"], cwd=tmp_path, check=True)
    printed = [words for block in blocks(PAGE) for words in block.commands() if "hybrid" in words]
    (words,) = [words[2:] for words in printed if "click_logs.py" in " ".join(words)]
    line = [word.replace("examples/click_logs.py", program) for word in words]
    run = script("run.py", *line, *SHORT, "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verification"]["passed"] is True


@pytest.mark.slow
def test_models_of_hugging_face_work_as_the_page_has_them(tmp_path: Path, dpexp_home: Path) -> None:
    (block,) = [block for block in blocks(PAGE) if block.needs == "transformers"]
    write_examples(PAGE, tmp_path)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    for words in block.commands():
        done = script("run.py", *words[2:], folder=tmp_path, DPEXP_TRACK="0")
        assert done.returncode == 0, done.stderr


DRAWS = """
import random
import numpy as np
import torch
from torch import nn

def data(more=0):
    torch.rand(more)
    return [(torch.rand(3) + random.random(), torch.tensor([np.random.rand()]).float()) for _ in range(4)]

def model():
    made = nn.Linear(3, 1)
    nn.init.constant_(made.bias, random.random() + np.random.rand())
    return made
"""


def test_factories_may_draw_from_any_global_generator(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)

    def made(seed: int, more: int = 0) -> tuple[str, str]:
        options = {"model": f"{tmp_path}/draws.py:model", "data": f"{tmp_path}/draws.py:data:more={more}"}
        prepared = prepare(RunConfig("single", devices="cpu", seed=seed, **options))
        return prepared.data.digest, digest(prepared.model.state_dict())

    assert made(0) == made(0)
    assert made(0)[0] != made(1)[0]
    assert made(0)[1] != made(1)[1]
    assert made(0)[1] == made(0, more=1)[1]  # weights do not depend on what the data draws


def test_the_docs_table_in_a_file_is_trained_there(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_examples(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    options = {"sparse": True, "optimizer": "adagrad", "virtual": 1, "steps": 20, "track": False}
    record = dpexp.run("hybrid", model="mapped.py:Ids:rows=3000,dim=16", **options)
    assert record.status == "finished"
    assert record.verification["passed"]
    (table,) = [
        row for row in record.device_map if row["module"] == "embedding" and row["kind"] == "parameter"
    ]
    assert (table["device"], table["shape"]) == ("cpu", [3000, 16])
    trained = torch.from_file("table.bin", size=3000 * 16).view(3000, 16)
    torch.manual_seed(0)
    drawn = torch.cat([part.normal_() for part in torch.empty(3000, 16).split(65536)])
    changed = (trained != drawn).any(1)
    assert 0 < int(changed.sum()) <= 100, "the rows of 100 ids"


# --- decoders that return a cache of keys and values, as those of Hugging Face do ---


class Decoder(nn.Module):
    """Ids ``(rows, 6)`` -> ``logits`` ``(rows, 6, 11)``, and a cache, which replicas cannot join."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        cache = {"past_key_values": object()} if self.config.use_cache else {}
        return {"logits": self.head(self.embedding(ids)), **cache}


def test_the_cache_of_a_decoder_inside_a_model_is_turned_off_and_one_that_is_off_is_no_news() -> None:
    model = nn.Sequential(Decoder())
    found = verification(model)
    assert found["passed"]
    assert found["note"] == "the model's config.use_cache is turned off: its cache is for generation"
    assert model[0].config.use_cache, "the user's model stays as it is"
    model[0].config.use_cache = False
    assert "use_cache" not in verification(model)["note"]


def verification(model: nn.Module) -> Any:
    ids = torch.randint(11, (10, 6), generator=torch.Generator().manual_seed(0))
    short = {"steps": 2, "warmup": 0, "phase_steps": 0, "batch_size": 5, "track": False, "quiet": True}
    return dpexp.run("whole", model=model, data=(ids, ids.roll(1)), virtual=2, **short).verification

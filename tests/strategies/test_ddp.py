"""ddp: ranks of torchrun are one run, one Record, and compute what a single device computes."""

import os
from pathlib import Path

import pytest
from helpers.engine_runs import recorded
from helpers.in_ranks import records
from helpers.launching import left_behind, record, run, torchrun

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prediction import dry_run
from dpexp.engine.prepare import prepare

SHORT = {"strategy": "ddp", "steps": 4, "warmup": 1, "phase_steps": 2}


def test_every_rank_computes_its_rows_and_all_what_a_single_device_computes() -> None:
    (found,) = records(2, SHORT | {"batch_size": 30})
    assert found.verification["dtype"] == "float64"
    assert found.verification["passed"] is True
    assert max(found.verification["output_error"], found.verification["gradient_error"]) < 1e-12
    assert found.steps["samples"] == [30, 30, 30, 10]
    assert [rank["device"] for rank in found.devices["ranks"]] == ["cpu:0", "cpu:1"]
    of_first = [row for row in found.shapes if row["batch"] == 0 and row["module"] == "fc"]
    assert [(row["replica"], row["inputs"]) for row in of_first] == [(0, [[15, 5]]), (1, [[15, 5]])]
    assert set(found.memory) == {"cpu:0", "cpu:1"}
    assert found.execution == "virtual"


def test_training_on_ranks_without_rows_follows_the_single_device(dpexp_home: Path) -> None:
    """Batches of 6 rows and 1: the second rank has none of that one."""
    long = {"steps": 9, "warmup": 0, "phase_steps": 1, "dtype": "float64", "batch_size": 6}
    long |= {"data": "random:samples=19"}
    single = recorded(dpexp_home, RunConfig.from_dict({"strategy": "single", "devices": "cpu", **long}))
    (ranks,) = records(2, SHORT | long)
    assert ranks.verification["gradient_error"] < 1e-12
    last = [row["inputs"][0][0] for row in ranks.shapes if row["batch"] == 3 and row["module"] == "fc"]
    assert last == [1]
    assert ranks.steps["samples"] == single.steps["samples"]
    assert ranks.steps["loss"] == pytest.approx(single.steps["loss"], rel=1e-12)


def test_every_rank_and_every_bucket_has_its_phases() -> None:
    (found,) = records(2, SHORT | {"model": "mlp:depth=3,hidden=128", "bucket_mb": 0.05})
    buckets = {name for name in found.phases if name.startswith("allreduce_bucket")}
    assert len(buckets) >= 2
    others = {"forward", "loss", "backward", "backward_compute", "allreduce", "overlap", "optimizer"}
    assert set(found.phases) == others | buckets
    assert {row["replica"] for row in found.timeline if row["phase"] == "backward_compute"} == {None, 0, 1}
    backward = [row for row in found.timeline if row["phase"] == "backward" and row["replica"] is None]
    inside = [row for row in found.timeline if row["phase"] == "allreduce" and row["replica"] is None]
    for outer, inner in zip(backward, inside, strict=True):
        assert outer["start_us"] <= inner["start_us"] <= inner["end_us"] <= outer["end_us"]


def test_under_torchrun_only_the_first_rank_prints_and_records() -> None:
    words = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")
    found = record(torchrun(2, "ddp", "--reduction", "tokens", *words))
    assert len(found["devices"]["ranks"]) == 2
    assert (found["work"]["rows"], found["work"]["tokens"]) == (30, 60)  # of all ranks
    assert found["work"]["flops"]["forward"] == 30 * 2 * 5 * 2
    assert [row["rank"] for row in found["memory_use"]] == [0, 1]
    assert found["verification"]["passed"] is True
    folders = list((Path(os.environ["DPEXP_HOME"]) / "runs").iterdir())
    assert [folder.name for folder in folders] == [found["run_id"]]


# --- faults --------------------------------------------------------------------------------------

EXAMPLE = """
import os, torch
from torch import nn
class Model(nn.Sequential):
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
"""
UNUSED = EXAMPLE + (
    "class Spare(nn.Linear):\n    def forward(self, x):\n        return torch.zeros(len(x), 5) + x\n"
    "def make():\n    return Model(Spare(3, 3), nn.Linear(5, 2))\n"
)
DIFFERENT = EXAMPLE + (
    "def make():\n    wide = 4 + (os.environ.get('RANK') == '1')\n"
    "    return Model(nn.Linear(5, wide), nn.Linear(wide, 2))\n"
)
RAISING = EXAMPLE + (
    "class Raising(nn.Linear):\n    calls = 0\n    def forward(self, x):\n"
    "        Raising.calls += 1\n"
    "        if Raising.calls >= 9 and os.environ.get('RANK') == '1':\n"
    "            raise ValueError('row 7 is odd')\n        return super().forward(x)\n"
    "def make():\n    return Model(Raising(5, 2))\n"
)


def user_model(folder: Path, source: str) -> str:
    (folder / "user.py").write_text(source)
    return f"{folder}/user.py:make"


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        (DIFFERENT, 2, ["the ranks differ in their model: rank 1 on host"]),
        (RAISING, 1, ["error: rank 1 on host", "ValueError: row 7 is odd"]),
    ],
    ids=["different", "raising"],
)
def test_a_fault_is_reported_once(tmp_path: Path, source: str, code: int, words: list[str]) -> None:
    model = ("--model", user_model(tmp_path, source), "--steps", "4", "--warmup", "1")
    done = run("ddp", "--devices", "2", *model)
    assert done.returncode == code, done.stderr
    for word in words:
        assert done.stderr.count(word) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not left_behind()


def test_unused_parameters_are_refused_unless_ddp_finds_them(tmp_path: Path) -> None:
    options = SHORT | {"model": user_model(tmp_path, UNUSED)}
    with pytest.raises(ConfigError, match=r"does not depend on 0\.weight, 0\.bias.*--find-unused"):
        prepare(RunConfig.from_dict(options))
    assert records(2, options | {"find_unused": True})[0].verification["passed"] is True


@pytest.mark.parametrize("batch_size", [30, 3])
def test_a_dry_run_has_the_shapes_of_the_run(batch_size: int) -> None:
    """Of every rank: batches of 15 rows each, or of 2 and 1, and 16 of the 34 batches."""
    planned = dry_run(RunConfig("ddp", virtual=2, batch_size=batch_size))
    ran = records(2, SHORT | {"batch_size": batch_size})[0]
    assert planned.shapes == ran.shapes

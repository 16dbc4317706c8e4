"""The process group: the rows of each rank, and the runs of a program that torchrun starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from helpers.launching import AGENT, start_forked, wait

from dpexp.config.errors import ConfigError
from dpexp.config.mesh import Mesh
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.world import World
from dpexp.record.fold import load_record


@pytest.mark.parametrize(("rows", "ranks"), [(30, 8), (10, 8), (9, 4), (1, 3), (100, 7)])
def test_rows_are_split_as_tensor_chunk_splits_them(rows: int, ranks: int) -> None:
    found = []
    for rank in range(ranks):
        group = ProcessGroup()
        group.rank, group.mesh = rank, Mesh.of_rows(ranks)
        found.append(list(range(rows))[group.rows(rows)])
    expected = [piece.tolist() for piece in torch.arange(rows).chunk(ranks)]
    assert found == expected + [[]] * (ranks - len(expected))


PROGRAM = """
import os
from pathlib import Path
import torch
import dpexp
torch.manual_seed(0)
short = dict(steps=2, warmup=1, phase_steps=1, track=False, check=False, quiet=True)
ids = [dpexp.run("ddp", model=torch.nn.Linear(5, 2), lr=lr, **short).run_id for lr in (0.1, 0.2)]
Path(__file__).with_name(os.environ["RANK"]).write_text(" ".join(ids))
"""


def test_each_run_of_a_program_has_an_id_that_its_ranks_agree_on(dpexp_home: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = wait(start_forked(*AGENT, "2", str(tmp_path / "program.py")))
    assert done.returncode == 0, done.stderr
    first, second = (tmp_path / "0").read_text().split()
    assert (tmp_path / "1").read_text().split() == [first, second]
    assert {folder.name for folder in (dpexp_home / "runs").iterdir()} == {first, second}
    records = [load_record(dpexp_home / "runs" / run_id) for run_id in (first, second)]
    assert [record.config["lr"] for record in records] == [0.1, 0.2]
    assert {record.status for record in records} == {"finished"}


# --- the world of a rank, from torchrun's environment variables ---

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "1",
}


def set_all(monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str]) -> None:
    for name, value in (TORCHRUN | changes).items():
        monkeypatch.setenv(name, value)


def test_a_world_that_lacks_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"MASTER_ADDR": ""})
    with pytest.raises(ConfigError, match="not MASTER_ADDR"):
        World.of()


@pytest.mark.parametrize(("size", "attempt"), [("2", 1), ("4", 0)])
def test_a_world_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, size: str, attempt: int
) -> None:
    """Restarts count where all ranks have one agent."""
    assert World.of() is None
    set_all(monkeypatch, {"WORLD_SIZE": size})
    world = World.of()
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, int(size), 1, 2)
    assert world.attempt == attempt

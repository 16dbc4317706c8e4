"""ddp: ranks of torchrun are one run, one Record, and compute what a single device computes."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import record, run, torchrun

from dpexp.config import ConfigError, DdpOptions
from dpexp.devices import HOST
from dpexp.distributed import World
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.ddp import ddp_module
from dpexp.timing import Timer

SHORT = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")


def chunks(rows: int, count: int) -> list[int]:
    each = -(-rows // count)
    return [min(each, rows - start) for start in range(0, rows, each)]


@pytest.mark.parametrize(("world", "batch"), [(1, 30), (2, 10), (3, 10), (4, 30)])
def test_every_world_computes_what_a_single_device_computes(world: int, batch: int) -> None:
    found = record(run("ddp", "--devices", str(world), "--batch-size", str(batch), *SHORT))
    assert found["verification"]["dtype"] == "float64"
    assert found["verification"]["passed"] is True
    assert max(found["verification"]["output_error"], found["verification"]["gradient_error"]) < 1e-12
    assert found["steps"]["samples"] == [30, 30, 30, 10] if batch == 30 else [10] * 4
    assert [rank["device"] for rank in found["devices"]["ranks"]] == [f"cpu:{i}" for i in range(world)]
    of_first = [row for row in found["shapes"] if row["batch"] == 0 and row["module"] == "fc"]
    assert [row["inputs"] for row in of_first] == [[[rows, 5]] for rows in chunks(batch, world)]
    assert [row["replica"] for row in of_first] == list(range(len(of_first)))
    assert set(found["memory"]) == {f"cpu:{i}" for i in range(world)}
    assert found["execution"] == "virtual"


def test_training_on_ranks_without_rows_follows_the_single_device() -> None:
    """Batches of 30 and, every fourth step, 10: over eight ranks three have none."""
    long = ("--steps", "9", "--warmup", "0", "--phase-steps", "1", "--dtype", "float64", "--json")
    single = record(run("single", "--devices", "cpu", *long))
    ranks = record(run("ddp", "--virtual", "8", *long))
    assert ranks["verification"]["gradient_error"] < 1e-12
    last = [row["inputs"][0][0] for row in ranks["shapes"] if row["batch"] == 3 and row["module"] == "fc"]
    assert last == [2, 2, 2, 2, 2]
    assert ranks["steps"]["samples"] == single["steps"]["samples"]
    assert ranks["steps"]["loss"] == pytest.approx(single["steps"]["loss"], rel=1e-12)


def test_the_phases_come_from_every_rank_and_every_bucket() -> None:
    model = ("--model", "mlp:depth=3,hidden=128", "--bucket-mb", "0.05")
    found = record(run("ddp", "--devices", "2", *model, *SHORT))
    buckets = {name for name in found["phases"] if name.startswith("allreduce_bucket")}
    assert len(buckets) >= 2
    wanted = {"forward", "loss", "backward", "backward_compute", "allreduce", "overlap", "optimizer"}
    assert set(found["phases"]) == wanted | buckets
    by_rank = {row["replica"] for row in found["timeline"] if row["phase"] == "backward_compute"}
    assert by_rank == {None, 0, 1}
    backward = [row for row in found["timeline"] if row["phase"] == "backward" and row["replica"] is None]
    inside = [row for row in found["timeline"] if row["phase"] == "allreduce" and row["replica"] is None]
    for outer, inner in zip(backward, inside, strict=True):
        assert outer["start_us"] <= inner["start_us"] <= inner["end_us"] <= outer["end_us"] + 100


def test_only_recorded_steps_run_a_hook_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        timer = Timer()
        module = ddp_module(torch.nn.Linear(2, 2), HOST, timer, DdpOptions())
        module(torch.ones(1, 2)).sum().backward()
        assert module._comm_hooks == []
        for _ in range(2):
            with timer.step():
                loss = module(torch.ones(1, 2)).sum()
                with timer.phase("backward"):
                    loss.backward()
        assert len(module._comm_hooks) == 1
        assert len(timer.phases["allreduce"]) == 2
    finally:
        torch.distributed.destroy_process_group()


def test_torchrun_starts_the_same_script_and_the_first_rank_alone_prints() -> None:
    found = record(torchrun(3, "ddp", *SHORT))
    assert len(found["devices"]["ranks"]) == 3
    assert found["verification"]["passed"] is True
    folders = list((Path(os.environ["DPEXP_HOME"]) / "runs").iterdir())
    assert [folder.name for folder in folders] == [found["run_id"]]


def test_batchnorm_and_dropout_are_in_the_note(tmp_path: Path) -> None:
    done = run("ddp", "--devices", "2", "--model", own(tmp_path, NORMED), *SHORT)
    note = record(done)["verification"]["note"]
    assert "BatchNorm in eval mode (1)" in note
    assert "dropout in eval mode (2)" in note


# --- faults --------------------------------------------------------------------------------------

EXAMPLE = """
import os, torch
from torch import nn
class Model(nn.Sequential):
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
"""
NORMED = EXAMPLE + (
    "def make():\n    return Model(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))\n"
)
UNUSED = EXAMPLE + (
    "class Spare(nn.Linear):\n    def forward(self, x):\n        return torch.zeros(len(x), 5) + x\n"
    "def make():\n    return Model(Spare(3, 3), nn.Linear(5, 2))\n"
)
FROZEN = EXAMPLE + "def make():\n    return Model(nn.Linear(5, 2)).requires_grad_(False)\n"
DIFFERENT = EXAMPLE + (
    "def make():\n    wide = 4 + (os.environ.get('RANK') == '1')\n"
    "    return Model(nn.Linear(5, wide), nn.Linear(wide, 2))\n"
)
RAISING = EXAMPLE + (
    "class Raising(nn.Linear):\n    calls = 0\n    def forward(self, x):\n"
    "        Raising.calls += 1\n"
    "        if Raising.calls == 9 and os.environ.get('RANK') == '1':\n"
    "            raise ValueError('row 7 is odd')\n        return super().forward(x)\n"
    "def make():\n    return Model(Raising(5, 2))\n"
)
ABORTING = RAISING.replace("raise ValueError('row 7 is odd')", "os.abort()")


def own(folder: Path, source: str) -> str:
    (folder / "own.py").write_text(source)
    return f"{folder}/own.py:make"


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        (UNUSED, 2, ["does not depend on 0.weight, 0.bias", "--find-unused"]),
        (FROZEN, 2, ["2 parameters, all of them frozen", "--eval"]),
        (DIFFERENT, 2, ["the ranks differ in their model: rank 1 on host"]),
        (RAISING, 1, ["error: rank 1 on host", "ValueError: row 7 is odd"]),
        (ABORTING, 1, ["rank 1 on host"]),
    ],
    ids=["unused", "frozen", "different", "raising", "aborting"],
)
def test_a_fault_is_one_message_from_one_place(
    tmp_path: Path, source: str, code: int, words: list[str]
) -> None:
    done = run("ddp", "--devices", "2", "--model", own(tmp_path, source), "--max-restarts", "0", *SHORT[:-1])
    assert done.returncode == code, done.stderr[-3000:]
    for word in words:
        assert done.stderr.count(word) == 1, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    assert not ranks_alive(tmp_path)


def ranks_alive(folder: Path) -> list[int]:
    """Processes whose command line names this test's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in line:
                found.append(int(entry.name))
    return found


def test_unused_parameters_are_found_on_request(tmp_path: Path) -> None:
    done = run("ddp", "--devices", "2", "--model", own(tmp_path, UNUSED), "--find-unused", *SHORT)
    assert record(done)["verification"]["passed"] is True


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--comm", "nccl"], ["--comm nccl", "CUDA"]),
        (["--nnodes", "2"], ["--nnodes 2", "--rdzv-endpoint HOST:PORT"]),
        (["--nnodes", "3:2"], ["--nnodes 3:2", "fewest:most"]),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "nowhere.invalid:29500"],
            ["'nowhere.invalid' cannot be resolved"],
        ),
        (["--nnodes", "2", "--rdzv-endpoint", "here"], ["--rdzv-endpoint 'here'", "10.0.0.1:29500"]),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(
    dpexp_home: Path, words: list[str], expected: list[str]
) -> None:
    done = run("ddp", "--devices", "2", *words)
    assert done.returncode == 2, done.stderr[-3000:]
    for word in expected:
        assert word in done.stderr
    assert not list(dpexp_home.iterdir())


def test_a_dry_run_shows_which_rank_gets_which_rows(dpexp_home: Path) -> None:
    planned = record(run("ddp", "--virtual", "8", "--dry-run", "--json"))
    assert [(row["rows"], row["batches"], row["pieces"]) for row in planned["splits"]] == [
        (30, 3, [4, 4, 4, 4, 4, 4, 4, 2]),
        (10, 1, [2, 2, 2, 2, 2]),
    ]
    assert planned["splits"][1]["devices"] == [f"rank {rank}" for rank in range(5)]
    assert "8 ranks share it" in planned["note"]
    assert not list(dpexp_home.iterdir())


def test_a_missing_host_is_told_in_time() -> None:
    words = ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:29517", "--join-timeout", "3")
    done = run("ddp", "--devices", "1", *words)
    assert done.returncode == 1
    assert "fewer than 2 hosts met at 127.0.0.1:29517 within 3 s" in done.stderr


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        done = run("ddp", "--devices", "1", "--nnodes", "2", "--rdzv-endpoint", endpoint)
    assert done.returncode == 1
    assert f"port of --rdzv-endpoint {endpoint} is in use on this host: choose another" in done.stderr
    assert "Traceback" not in done.stderr


def test_torchrun_and_devices_must_agree() -> None:
    done = torchrun(2, "ddp", "--devices", "3")
    assert done.returncode != 0
    assert "asks for 3 ranks a host and torchrun started 2" in done.stderr


def test_a_strategy_of_one_process_refuses_ranks() -> None:
    done = torchrun(2, "single")
    assert "single is one process, and this is rank" in done.stderr


# --- the world -----------------------------------------------------------------------------------

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MASTER_ADDR": ""}, "not MASTER_ADDR"),
        ({"RANK": "2"}, "does not add up: RANK=2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
        ({"RANK": "first"}, "RANK='first'"),
    ],
)
def test_a_world_that_does_not_add_up_is_refused(changes: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        World.of(TORCHRUN | changes)


def test_a_world_is_read_from_the_environment() -> None:
    world = World.of(TORCHRUN)
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 2, 1, 2)
    assert World.of({}) is None


@pytest.mark.parametrize(("rows", "ranks"), [(30, 8), (10, 8), (9, 4), (1, 3), (100, 7)])
def test_rows_are_cut_as_tensor_chunk_cuts_them(rows: int, ranks: int) -> None:
    import torch

    found: list[list[Any]] = []
    for rank in range(ranks):
        each = ProcessGroup()
        each.rank, each.size = rank, ranks
        found.append(list(range(rows))[each.rows(rows)])
    expected = [piece.tolist() for piece in torch.arange(rows).chunk(ranks)]
    assert found == expected + [[]] * (ranks - len(expected))


def test_the_delivered_run_is_one_mlflow_run(dpexp_home: Path) -> None:
    from launching import SCRIPT, start, wait

    done = wait(start(SCRIPT, "ddp", "--devices", "2", *SHORT, "--track-timeout", "60"))
    assert done.returncode == 0, done.stderr[-3000:]
    with closing(sqlite3.connect(dpexp_home / "mlflow.db")) as store:
        ((run_id, status),) = store.execute("SELECT run_uuid, status FROM runs").fetchall()
        tags = dict(store.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,)).fetchall())
    assert status == "FINISHED"
    assert tags["dpexp.run_id"] == json.loads(done.stdout)["run_id"]

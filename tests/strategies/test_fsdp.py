"""fsdp, and hybrid over ranks: parts of parameters on every rank, the results of a single device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import record, run, start, torchrun, wait

from dpexp.config import ConfigError, RunConfig
from dpexp.engine.prepare import prepare
from dpexp.models import MODELS

SHORT = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")


def parameter_bytes(found: dict, rank: int) -> int:  # type: ignore[type-arg]
    return sum(row["bytes"] for row in found["device_map"] if row.get("rank") == rank)


def test_fsdp_computes_what_a_single_device_computes_from_shards() -> None:
    found = record(run("fsdp", "--devices", "3", "--batch-size", "10", *SHORT))
    assert found["verification"]["passed"] is True
    assert found["verification"]["gradient_error"] < 1e-12
    weights = [
        row for row in found["device_map"] if row["module"] == "block1" and row["parameter"] == "weight"
    ]
    assert [(row["rank"], row["device"], row["shape"], row["local_shape"]) for row in weights] == [
        (0, "cpu:0", [20, 10], [7, 10]),
        (1, "cpu:1", [20, 10], [7, 10]),
        (2, "cpu:2", [20, 10], [6, 10]),
    ]
    assert {row["placement"] for row in found["device_map"]} == {"S(0)"}
    ddp = record(run("ddp", "--devices", "2", "--model", "blocks", *SHORT))
    whole = sum(row["bytes"] for row in ddp["device_map"])
    held = [parameter_bytes(found, rank) for rank in range(3)]
    assert sum(held) == whole
    assert max(held) < 0.4 * whole  # of each rank's own memory; of ddp's ranks each holds it all
    assert set(found["memory"]) == {"cpu:0", "cpu:1", "cpu:2"}


def test_fsdp_and_ddp_train_to_the_same_loss() -> None:
    """Batches of 30, 30, 30 and 10 over four ranks; 10 rows are 3, 3, 3 and 1."""
    words = ("--devices", "4", "--model", "blocks", "--dtype", "float64", "--no-check", *SHORT)
    ddp, fsdp = (record(run(strategy, *words))["steps"]["loss"] for strategy in ("ddp", "fsdp"))
    assert fsdp == pytest.approx(ddp, rel=1e-12)


def test_blocks_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="--block 'block9' not found"):
        prepare(RunConfig("fsdp", virtual=2, options={"block": ["block9"]}))


@pytest.mark.parametrize("gradients", ["--sparse", "--dense"])
def test_replicated_tables_are_all_reduced(gradients: str) -> None:
    found = record(torchrun(3, "hybrid", gradients, "--batch-size", "10", *SHORT))
    assert found["verification"]["gradient_error"] < 1e-12
    (table,) = (row for row in found["device_map"] if row["module"] == "embedding")
    assert (table["shape"], len(table["replicas"])) == ([1000, 10], 2)
    assert "allreduce_tables" in found["phases"]


def test_tables_are_sharded_by_rows_over_ranks() -> None:
    words = ("--shard-embedding", "--sparse", "--model", "dlrm:tables=2,rows=10", "--host", "embedding")
    found = record(torchrun(4, "hybrid", *words, "--batch-size", "10", *SHORT))
    assert found["verification"]["output_error"] < 1e-12
    assert found["verification"]["gradient_error"] < 1e-12
    tables = [row for row in found["device_map"] if row["module"] == "embedding.tables.0"]
    assert [(row["rank"], row["placement"], row["bytes"]) for row in tables] == [
        (0, "rows 0 to 2", 192),
        (1, "rows 3 to 5", 192),
        (2, "rows 6 to 8", 192),
        (3, "rows 9 to 9", 64),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"shard_embedding": True}, "start them with torchrun")],
)
def test_sharding_without_ranks_is_refused(options: dict[str, bool], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(RunConfig("hybrid", virtual=1, options=options))


def test_every_model_computes_the_same_in_ranks() -> None:
    """One start of two ranks for all models: 4 rows and 3."""
    agent = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = wait(start(*agent, str(Path(__file__).parents[1] / "helpers" / "every_model_in_ranks.py")))
    assert done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found) == {f"{strategy} {model}" for strategy in ("ddp", "fsdp") for model in MODELS}
    for name, (passed, output_error, gradient_error) in found.items():
        assert passed is True, name
        assert max(output_error, gradient_error) < 1e-12, name

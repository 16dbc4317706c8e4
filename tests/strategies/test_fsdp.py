"""fsdp, and hybrid over ranks: shards of parameters on every rank, the results of a single device."""

import re
from pathlib import Path
from typing import Any

import pytest
from in_ranks import in_ranks
from launching import record, run, torchrun
from torch import nn

from dpexp import report
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.models.registry import MODELS
from dpexp.record.record import Record
from dpexp.report import units
from dpexp.strategies.ranks import Fsdp

SHORT = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")
ACCUMULATED = ("--accumulate", "2", "--clip-norm", "0.01")


def parameter_bytes(found: dict, rank: int) -> int:  # type: ignore[type-arg]
    return sum(row["bytes"] for row in found["device_map"] if row.get("rank") == rank)


def test_fsdp_computes_what_a_single_device_computes_from_shards() -> None:
    found = record(run("fsdp", "--devices", "3", "--batch-size", "10", *ACCUMULATED, *SHORT))
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
    full = sum(row["bytes"] for row in ddp["device_map"])
    shards = [parameter_bytes(found, rank) for rank in range(3)]
    assert sum(shards) == full
    assert max(shards) < 0.4 * full  # every rank of ddp has the full parameters
    assert set(found["memory"]) == {"cpu:0", "cpu:1", "cpu:2"}
    use = {row["rank"]: row for row in found["memory_use"]}
    assert [(use[rank]["parameters"], use[rank]["gradients"]) for rank in range(3)] == [
        (size, size) for size in shards
    ]
    assert [use[rank]["device"] for rank in range(3)] == ["cpu:0", "cpu:1", "cpu:2"]
    assert found["work"]["flops"]["forward"] == ddp["work"]["flops"]["forward"] / 3  # batches of 10, not 30
    assert {"all-gather", "backward all-gather", "reduce-scatter"} < set(found["phases"])
    text = report.summary(Record.from_dict(found), width=120, full=True)
    assert "35% of block1, 308 B of 880 B" in text  # 7 of 20 rows
    padded = 4 * (7 * 10 + 7 + 7 * 20 + 7 + 7 * 20 + 7)  # a rank's shards, as long as the longest
    assert f"forward moves {units.size(3 * 2 * padded)}: " in text
    assert re.search(rf"reduce-scatter .*, {units.size(3 * 2 * padded)}\n", text)


def test_blocks_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="--block 'block9' not found"):
        prepare(RunConfig("fsdp", virtual=2, options={"block": ["block9"]}))


@pytest.mark.parametrize(
    ("gradients", "optimizer"), [("--sparse", ("adam", *ACCUMULATED)), ("--dense", ("sgd",))]
)
def test_replicated_tables_are_all_reduced(gradients: str, optimizer: tuple[str, ...]) -> None:
    found = record(torchrun(3, "hybrid", gradients, "--optimizer", *optimizer, "--batch-size", "10", *SHORT))
    assert found["verification"]["gradient_error"] < 1e-12
    (table, *state) = (row for row in found["device_map"] if row["module"] == "embedding")
    assert [row["parameter"] for row in state] == ["weight: exp_avg", "weight: exp_avg_sq"] * len(state[:1])
    assert all((row["kind"], len(row["replicas"])) == ("optimizer", 2) for row in state)
    assert (table["shape"], len(table["replicas"])) == ([1000, 10], 2)
    assert "allreduce_tables" in found["phases"]


def test_tables_are_sharded_by_rows() -> None:
    words = ("--shard-embedding", "--sparse", "--model", "embedding:rows=70001,dim=16")
    optimizer = ("--optimizer", "adagrad", *ACCUMULATED)
    found = record(torchrun(4, "hybrid", *words, *optimizer, "--batch-size", "10", *SHORT))
    assert found["verification"]["output_error"] < 1e-12
    assert found["verification"]["gradient_error"] < 1e-12
    tables = [row for row in found["device_map"] if row["module"] == "embedding"]
    assert [
        (row["rank"], row["placement"], row["bytes"]) for row in tables if row["kind"] == "parameter"
    ] == [
        (0, "rows 0 to 17500", 17501 * 64),
        (1, "rows 17501 to 35001", 17501 * 64),
        (2, "rows 35002 to 52502", 17501 * 64),
        (3, "rows 52503 to 70000", 17498 * 64),
    ]
    assert "embedding was compared in" in found["verification"]["note"]
    sums = [row for row in tables if row["kind"] == "optimizer"]
    assert [(row["rank"], row["shape"], row["bytes"]) for row in sums] == [
        (rank, [70001, 16], 64 * rows) for rank, rows in enumerate((17501, 17501, 17501, 17498))
    ]


def test_sharding_without_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="start them with torchrun"):
        prepare(RunConfig("hybrid", virtual=1, options={"shard_embedding": True}))


def test_a_list_of_modules_is_sharded_module_by_module() -> None:
    """A ModuleList has no forward, and FSDP2 refuses to shard one; a model without parts is one unit."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])

    strategy = Fsdp(RunConfig("fsdp").options)
    assert strategy.blocks(Listed()) == ["layers.0", "layers.2"]
    assert strategy.blocks(nn.Linear(4, 4)) == []


TIED = """
import torch
from torch import nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(50, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, ids):
        return self.head(self.body(self.embedding(ids)))
    def example(self, samples, generator):
        ids = torch.randint(0, 50, (samples, 5), generator=generator)
        return ids, torch.randn(samples, 5, 50, generator=generator)
"""


def test_tied_weights_are_sharded_as_one(tmp_path: Path) -> None:
    (tmp_path / "tied.py").write_text(TIED)
    found = record(run("fsdp", "--model", f"{tmp_path}/tied.py:Tied", "--devices", "2", *SHORT))
    assert found["verification"]["passed"] is True
    assert {row["module"]: row["local_shape"] for row in found["device_map"] if row["rank"] == 0} == {
        "embedding": [25, 8],
        "body": [4],
    }


def test_blocks_with_a_tied_parameter_are_left_to_the_root() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
            self.apart = nn.Linear(4, 4)
            self.scale = self.third.weight
            self.second.weight = self.first.weight

    assert Fsdp(RunConfig("fsdp").options).blocks(Outer()) == ["apart"]


def verified(group: ProcessGroup, case: str) -> list[Any]:
    strategy, model = case.split()
    result = verify(prepare(RunConfig(strategy, model=model, batch_size=7), group=group))
    return [result.passed, max(result.worst["outputs"].error, result.worst["gradients"].error) < 1e-12]


def test_every_model_computes_in_two_ranks_what_it_computes_on_one_device() -> None:
    """Two ranks of 4 rows and 3, started once for all models."""
    cases = [f"verified:{strategy} {model}" for strategy in ("ddp", "fsdp") for model in MODELS]
    for case, by_rank in in_ranks(2, __file__, *cases).items():
        assert by_rank == [[True, True]] * 2, case

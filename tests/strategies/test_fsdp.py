"""fsdp: shards of parameters on every rank, the results of a single device."""

import re
from typing import Any

import pytest
from helpers.command_lines import ROOT
from helpers.in_ranks import in_ranks, records
from torch import nn

from dpexp import report
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.models.registry import MODELS
from dpexp.report import units
from dpexp.strategies.ranks import Fsdp

SHORT = {"steps": 4, "warmup": 1, "phase_steps": 2, "batch_size": 10}
ACCUMULATED = {"accumulate": 2, "clip_norm": 0.01}


def test_fsdp_computes_what_a_single_device_computes_from_shards() -> None:
    blocks = SHORT | {"model": "blocks:hidden=21"}
    found, ddp = records(2, blocks | {"strategy": "fsdp"} | ACCUMULATED, blocks | {"strategy": "ddp"})
    assert found.verification["passed"] is True
    assert found.verification["gradient_error"] < 1e-12
    weights = [row for row in found.device_map if (row["module"], row["parameter"]) == ("block1", "weight")]
    assert [(row["rank"], row["device"], row["shape"], row["local_shape"]) for row in weights] == [
        (0, "cpu:0", [21, 10], [11, 10]),
        (1, "cpu:1", [21, 10], [10, 10]),
    ]
    assert {row["placement"] for row in found.device_map} == {"S(0)"}
    full = sum(row["bytes"] for row in ddp.device_map)
    shards = [sum(row["bytes"] for row in found.device_map if row["rank"] == rank) for rank in range(2)]
    assert sum(shards) == full, "every rank of ddp has the full parameters"
    assert max(shards) < 0.6 * full
    assert set(found.memory) == {"cpu:0", "cpu:1"}
    assert [(row["device"], row["parameters"], row["gradients"]) for row in found.memory_use] == [
        (f"cpu:{rank}", size, size) for rank, size in enumerate(shards)
    ]
    assert found.work["flops"]["forward"] == ddp.work["flops"]["forward"]
    assert {"all-gather", "backward all-gather", "reduce-scatter"} < set(found.phases)
    text = report.summary(found, width=120, full=True)
    assert "52% of block1, 484 B of 924 B" in text  # 11 of 21 rows
    padded = 4 * (11 * 10 + 11 + 11 * 21 + 11 + 10 * 21 + 10)  # a rank's shards, as long as the longest
    assert f"forward moves {units.size(2 * padded)}: " in text
    assert re.search(rf"reduce-scatter .*, {units.size(2 * padded)}\n", text)


def test_a_list_of_modules_is_sharded_module_by_module_and_a_tied_block_by_the_root() -> None:
    """A ModuleList has no forward, and FSDP2 refuses to shard one; a model without parts is one unit."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])
            self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
            self.scale = self.third.weight
            self.second.weight = self.first.weight

    strategy = Fsdp(RunConfig("fsdp").options)
    assert strategy.blocks(Listed()) == ["layers.0", "layers.2"]
    assert strategy.blocks(nn.Linear(4, 4)) == []


def test_tied_weights_are_sharded_as_one() -> None:
    nets = ROOT / "tests" / "verification" / "cases" / "nets.py"
    (found,) = records(2, SHORT | {"strategy": "fsdp", "model": f"{nets}:Tied"})
    assert found.verification["passed"] is True
    assert {row["module"]: row["local_shape"] for row in found.device_map if row["rank"] == 0} == {
        "table": [13, 12],
        "body": [6],
    }


def verified(group: ProcessGroup, case: str) -> list[Any]:
    strategy, model = case.split()
    result = verify(prepare(RunConfig(strategy, model=model, batch_size=7), group=group))
    return [result.passed, max(result.worst["outputs"].error, result.worst["gradients"].error) < 1e-12]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_computes_in_two_ranks_what_it_computes_on_one_device(model: str, strategy: str) -> None:
    """Two ranks of 4 rows and 3."""
    (by_rank,) = in_ranks(2, __file__, f"verified:{strategy} {model}").values()
    assert by_rank == [[True, True]] * 2

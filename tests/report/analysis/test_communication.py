"""Bytes moved: what the Record of a run says is what was sent, forward and backward, for every strategy."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from command_lines import HELPERS
from launching import AGENT, start_forked, wait
from record_factory import hybrid, whole
from torch import nn

from dpexp import report
from dpexp.config.run_config import RunConfig
from dpexp.engine.observations import Observations
from dpexp.engine.prepare import prepare
from dpexp.record.record import Record
from dpexp.record.traffic.communication import is_known, moves, totals
from dpexp.report import units
from dpexp.timing import Timer

RANKS = 3
HELPER = HELPERS / "counted_in_ranks.py"


def test_collectives_move_what_a_counting_dispatcher_saw() -> None:
    """Three ranks, started once for all strategies; 10 rows are 4, 4 and 2, and shards have padding."""
    done = wait(start_forked(*AGENT, str(RANKS), str(HELPER)))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (sent,) = found.pop("sent")["sent"]
    assert (sent["what"], sent["bytes"]) == ("send", 400)
    tensor_parallel = found.pop("tensor parallel")
    rows, numbers, float32 = 10, 21, 4
    assert tensor_parallel["all-reduce forward"][0] == 2 * (RANKS - 1) * rows * numbers * float32
    again, _ = found["hybrid pipelined"].pop(
        "again forward"
    )  # rows that were looked up ahead and written since
    assert 0 < again <= found["hybrid pipelined"]["all-to-all forward"][0]
    assert len(found) == 12
    for case, kinds in found.items():
        assert kinds or case == "ddp eval", case
        for kind, (counted, recorded) in kinds.items():
            assert recorded == pytest.approx(counted, abs=2 * RANKS), (case, kind)  # each rank's is rounded
    assert set(found["fsdp"]) == {"all-gather forward", "all-gather backward", "reduce-scatter backward"}
    assert {"all-to-all forward", "all-to-all backward"} < set(found["hybrid sharded"])


class Net(nn.Module):
    """Every parameter is its own case: trained or frozen, before or in a block, beside a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)
        self.block1 = nn.Linear(6, 8)
        self.block2 = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        self.block1.bias.requires_grad_(False)

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(50, (samples, 3), generator=generator), torch.zeros(samples, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.block2(self.block1(self.table(ids).sum(1)))  # type: ignore[no-any-return]


FROZEN = 4 * 8
TRAINED = 4 * (50 * 6 + 6 * 8 + 8 * 4 + 4 + 4 + 4)
BUFFERS = 4 * (4 + 4) + 8
BLOCK2 = 4 * (8 * 4 + 4 + 4 + 4)
IDS, OUTPUTS = 8 * 5 * 3, 4 * 5 * 4
"""Bytes of half a batch of ten rows."""
WHOLE = {
    "scatter": IDS,
    "replicate": FROZEN + TRAINED + BUFFERS,
    "gather": OUTPUTS,
    "gather backward": OUTPUTS,
    "replicate backward": TRAINED,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "whole": ({"strategy": "whole"}, WHOLE),
    "functional": ({"strategy": "functional"}, WHOLE),
    "forward only": (
        {"strategy": "whole", "eval": True},
        {key: count for key, count in WHOLE.items() if "backward" not in key},
    ),
    "block": (
        {"strategy": "block", "block": ["block2"]},
        {
            "scatter": 4 * 5 * 8,
            "replicate": BLOCK2 + BUFFERS,
            "gather": OUTPUTS,
            "gather backward": OUTPUTS,
            "replicate backward": BLOCK2,
            "scatter backward": 4 * 5 * 8,
        },
    ),
    "hybrid": (
        {"strategy": "hybrid", "host": ["table"], "virtual": 1},
        {"transfer": 4 * 10 * 3 * 6, "transfer backward": 4 * 10 * 3 * 6},
    ),
    "place": (
        {"strategy": "place", "place": ["table=cpu:0", "block1=cpu:1", "block2=cpu:1"]},
        {
            "transfer": 4 * 10 * 6 + 4 * 10 * 4,  # the summed vectors, and the outputs to the first device
            "transfer backward": 4 * 10 * 6 + 4 * 10 * 4,
        },
    ),
    "single": ({"strategy": "single", "virtual": 1}, {}),
}


def observed(options: dict[str, Any]) -> Record:
    """The Record of a run that ends after it has observed its model."""
    shape = {"model": f"{__file__}:Net", "batch_size": 10, "data": "random:samples=24", "virtual": 2}
    config = RunConfig.from_dict(shape | options)
    prepared = prepare(config)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    found = Observations(prepared, placed)
    record = Record(strategy=config.strategy, config=config.to_dict(), devices=found.device_facts())
    record.device_map, record.shapes = found.device_map(), found.shapes()
    return Record.from_dict(record.to_dict())  # which checks the types


@pytest.mark.parametrize("case", CASES)
def test_copies_move_the_bytes_of_their_tensors_forward_and_backward(case: str) -> None:
    options, expected = CASES[case]
    counted = Counter[str]()
    for move in moves(observed(options)):
        counted[move.name] += move.bytes
    assert counted == expected


def test_a_model_whose_inputs_come_through_a_detach_sends_no_gradient_of_them() -> None:
    record = observed({"strategy": "block", "block": ["block2"]})
    for row in record.shapes:
        row.get("bytes", {}).pop("input_gradients", None)
    assert not [move for move in moves(record) if move.name == "scatter backward"]


def test_older_records_have_bytes_from_shapes() -> None:
    found = Counter[str]()
    for move in moves(whole(2)):
        found[move.name] += move.bytes
    assert found == {
        "scatter": 300,
        "gather": 120,
        "replicate": 48,
        "gather backward": 120,
        "replicate backward": 48,
    }
    assert totals(hybrid()) == {"forward": 30 * 10 * 4, "backward": 30 * 10 * 4}


@pytest.mark.parametrize("lost", ["shapes", "device_map", "both", "outputs", "rows"])
def test_a_record_that_lacks_something_has_no_error(lost: str) -> None:
    for record in (whole(3), hybrid()):
        if lost in ("shapes", "both"):
            record.shapes = []
        if lost in ("device_map", "both"):
            record.device_map = []
        for row in record.shapes:
            if lost == "outputs":
                row["outputs"] = []
            if lost == "rows":
                row["inputs"], row["outputs"] = [[]], [[]]
        for ranks in ([], [{"rank": 0, "host": "a", "device": "cpu:0"}]):
            record.devices["ranks"] = ranks
            assert sum(move.bytes for move in moves(record)) >= 0
            assert is_known(record) is (lost in ("outputs", "rows"))


def test_a_device_map_says_which_part_of_a_module_a_rank_has() -> None:
    record = whole(4)
    record.devices["ranks"] = [{"rank": rank, "host": "a", "device": f"cpu:{rank}"} for rank in range(4)]
    (weight, bias), record.device_map = record.device_map[:2], []
    for rank in range(4):
        shard = {
            "rank": rank,
            "device": f"cpu:{rank}",
            "replicas": [],
            "module": "block1",
            "placement": "S(0)",
        }
        record.device_map += [
            weight | shard | {"shape": [20, 12], "local_shape": [5, 12], "bytes": 240},
            bias | shard | {"shape": [20], "local_shape": [5], "bytes": 20},
        ]
    text = report.summary(record, width=100)
    assert "cpu:0 … cpu:3  a quarter of block1, 260 of 1,040 B  260 of 1,040 B each" in text
    for row in record.device_map:
        row |= {"device": "cpu"}
    assert "cpu of rank 0 … cpu of rank 3  a quarter of block1" in report.summary(record, width=100)


@pytest.mark.parametrize(
    ("count", "full", "words"),
    [(1, 2, "half"), (265, 1060, "a quarter"), (3, 24, "1/8"), (7, 20, "35%"), (0, 9, "nothing")],
)
def test_a_share_is_in_words(count: int, full: int, words: str) -> None:
    assert units.fraction(count, full) == words


def test_a_share_of_bytes_has_one_unit() -> None:
    assert units.part(265, 1060) == "265 of 1,060 B"
    assert units.part(3_100_000, 12_400_000) == "3.1 of 12.4 MB"
    assert units.part(0, 64_000_000_000) == "0 of 64 GB"

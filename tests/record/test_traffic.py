"""Bytes moved: what the Record of a run says is what was sent, forward and backward, for every strategy."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import journals
from helpers.command_lines import HELPERS
from helpers.engine_runs import recorded
from helpers.in_ranks import in_ranks, records
from torch import distributed, nn

from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.measurement.collectives import CountCollectives
from dpexp.record.record import Record
from dpexp.record.view import RecordView

SHORT: dict[str, Any] = {"batch_size": 10, "check": False, "warmup": 0, "steps": 2, "phase_steps": 1}
RANK_CASES = {
    "ddp": {"strategy": "ddp"},
    "ddp unused": {"strategy": "ddp", "find_unused": True},
    "ddp eval": {"strategy": "ddp", "eval": True},
    "fsdp": {"strategy": "fsdp", "block": ["block*"]},
    "fsdp eval": {"strategy": "fsdp", "block": ["block*"], "eval": True},
    "fsdp root": {"strategy": "fsdp", "block": ["block1"], "accumulate": 2},
    "tensor parallel": {
        "strategy": "custom",
        "layout": f"{HELPERS / 'layouts.py'}:tensor_parallel",
        "mesh": "tp=2",
        "model": "blocks:hidden=42",
    },
}


class Counted(nn.Module):
    """Parameters that two ranks do not split evenly, a frozen one, buffers, and a block called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 7)
        self.block1 = nn.Linear(7, 10)
        self.block2 = nn.Linear(10, 10)
        self.block3 = nn.Sequential(nn.Linear(10, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 2))
        self.block1.bias.requires_grad_(False)

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(50, (samples, 3), generator=generator)
        return ids, torch.randn(samples, 2, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.block1(self.table(ids).sum(1)).relu()
        return self.block3(self.block2(self.block2(hidden)))


def sent_to_the_next(group: ProcessGroup) -> list[dict[str, object]]:
    """What is counted of 100 numbers that every rank sends to the next, as the stages of a pipeline do."""
    with CountCollectives() as count:
        received = torch.empty(100)
        sending = distributed.isend(torch.ones(100), (group.rank + 1) % group.size)
        distributed.recv(received, (group.rank - 1) % group.size)
        assert sending is not None
        sending.wait()
    return count.rows()


def of_ranks(record: Record) -> Counter[str]:
    """The bytes that a step sends over all ranks, by what and phase."""
    counted = Counter[str]()
    for move in RecordView(record).moves:
        if move.what != "transfer":
            counted[f"{move.name} in {move.phase}"] += move.bytes
    return counted


def test_what_ranks_send_is_counted(dpexp_home: Path) -> None:
    ranks, shape = 2, {"model": f"{__file__}:Counted", "data": "random:samples=20", "devices": "cpu", **SHORT}
    (sent,) = in_ranks(ranks, __file__, "sent_to_the_next")["sent_to_the_next"][0]
    assert (sent["what"], sent["bytes"]) == ("send", 400)
    ran = records(ranks, *(shape | options for options in RANK_CASES.values()))
    found = {case: of_ranks(record) for case, record in zip(RANK_CASES, ran, strict=True)}
    tensor_parallel = found.pop("tensor parallel")
    rows, numbers, float32 = 10, 42, 4
    assert tensor_parallel["all-reduce in forward"] == 2 * (ranks - 1) * rows * numbers * float32
    assert len(found) == 6
    assert [case for case, kinds in found.items() if not kinds] == ["ddp eval"]
    trained = float32 * (50 * 7 + 7 * 10 + 110 + 55 + 12)
    reduced = found["ddp"]["all-reduce backward in allreduce"]
    assert reduced == pytest.approx(2 * (ranks - 1) * trained, abs=2 * ranks)  # each rank's is rounded
    assert set(found["ddp"]) == {"broadcast in forward", "all-reduce backward in allreduce"}
    assert set(found["fsdp"]) == {
        "all-gather in all-gather",
        "all-gather backward in backward all-gather",
        "reduce-scatter backward in reduce-scatter",
    }


class Net(nn.Module):
    """Parameters that are trained or frozen, before or in a block, beside a buffer."""

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


@pytest.mark.parametrize("case", CASES)
def test_copies_move_the_bytes_of_their_tensors_forward_and_backward(case: str, dpexp_home: Path) -> None:
    options, expected = CASES[case]
    shape = {"model": f"{__file__}:Net", "data": "random:samples=24", "virtual": 2, **SHORT}
    counted = Counter[str]()
    for move in RecordView(recorded(dpexp_home, RunConfig.from_dict(shape | options))).moves:
        counted[move.name] += move.bytes
    assert counted == expected


COUNTED = [
    {"rank": 0, "batch": 0, "what": "all-reduce", "phase": "backward", "backward": True, "bytes": 48},
    {"rank": 0, "batch": 3, "what": "all-reduce", "phase": "backward", "backward": True, "bytes": 16},
    {"rank": 1, "batch": 0, "what": "all-to-all", "phase": "ids", "backward": False, "to": 0, "bytes": 8},
]


def test_collectives_belong_to_the_phase_that_they_ran_in() -> None:
    record = journals.record("ddp")
    record.summary["collectives"] = COUNTED
    view = RecordView(record)
    sent = [(move.name, move.phase, move.source, move.target, move.bytes) for move in view.moves]
    assert sent == [
        ("all-reduce backward", "allreduce", "cpu:0", "cpu:1", 48),
        ("all-to-all", "ids", "cpu:1", "cpu:0", 8),
    ]
    assert view.bytes_moved == 56
    assert view.bytes_by_phase == {"allreduce": 48, "ids": 8}

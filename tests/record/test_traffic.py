"""Bytes moved: what the Record of a run says is what was sent, forward and backward, for every strategy."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from helpers.command_lines import HELPERS
from helpers.in_ranks import in_ranks
from helpers.record_factory import whole
from torch import distributed, nn

from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.data.batch import Batch
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.observations import Observations
from dpexp.engine.prepare import prepare
from dpexp.measurement.collectives import CountCollectives
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer

RANK_CASES = {
    "ddp": {"strategy": "ddp"},
    "ddp unused": {"strategy": "ddp", "find_unused": True},
    "ddp eval": {"strategy": "ddp", "eval": True},
    "fsdp": {"strategy": "fsdp", "block": ["block*"]},
    "fsdp eval": {"strategy": "fsdp", "block": ["block*"], "eval": True},
    "fsdp root": {"strategy": "fsdp", "block": ["block1"], "accumulate": 2},
    "hybrid dense": {"strategy": "hybrid", "host": ["table"], "sparse": False},
    "hybrid sparse": {"strategy": "hybrid", "host": ["table"], "sparse": True},
    "tensor parallel": {
        "strategy": "custom",
        "layout": f"{HELPERS / 'layouts.py'}:tensor_parallel",
        "model": "blocks:hidden=42",
    },
}
SHAPE = {"model": f"{__file__}:Counted", "batch_size": 10, "data": "random:samples=20", "devices": "cpu"}


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


def counted(group: ProcessGroup, case: str) -> dict[str, int]:
    """The bytes that the third step of a run sends over all ranks, by what and phase."""
    mesh = {"mesh": f"tp={group.size}"} if case == "tensor parallel" else {}
    config = RunConfig.from_dict(SHAPE | RANK_CASES[case] | mesh)
    assert isinstance(config.options, RankOptions)
    if mesh:
        group = ProcessGroup(config.options.mesh_of(group.size))
    prepared = prepare(config, group=group)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    observations = Observations(prepared, placed)
    record = Record(strategy=config.strategy, config=config.to_dict(), devices=observations.device_facts())
    record.device_map, record.shapes = observations.device_map(), observations.shapes()
    record.phases = {"allreduce": [1.0]}  # DistributedDataParallel times it by itself
    trainer = prepared.trainer(placed)
    trainer.take_steps(islice(prepared.local_batches(0), 2))
    batch = next(prepared.local_batches(0))
    record.summary["collectives"] = of_all_ranks(group, sent(trainer, batch))
    found: dict[str, int] = {}
    for move in RecordView(record).moves:
        if move.bytes and move.what != "transfer":
            kind = f"{move.name} in {move.phase}"
            found[kind] = found.get(kind, 0) + move.bytes
    return found


def of_all_ranks(group: ProcessGroup, rows: list[Row]) -> list[Row]:
    """The rows of every rank, as the engine records them."""
    by_rank = group.all_gather(rows)
    return [{"rank": rank, "batch": 0, **row} for rank, of_rank in enumerate(by_rank) for row in of_rank]


def sent(trainer: Trainer, batch: Batch) -> list[Row]:
    with trainer.placed.timer.names() as phases, CountCollectives(phases) as count:
        trainer.step(batch)
    return count.rows()


def sent_to_the_next(group: ProcessGroup) -> list[dict[str, object]]:
    """What is counted of 100 numbers that every rank sends to the next, as the stages of a pipeline do."""
    with CountCollectives() as count:
        received = torch.empty(100)
        sending = distributed.isend(torch.ones(100), (group.rank + 1) % group.size)
        distributed.recv(received, (group.rank - 1) % group.size)
        assert sending is not None
        sending.wait()
    return count.rows()


def test_what_ranks_send_is_counted() -> None:
    ranks = 2
    of_rank = in_ranks(ranks, __file__, "sent_to_the_next", *(f"counted:{case}" for case in RANK_CASES))
    (sent,) = of_rank.pop("sent_to_the_next")[0]
    assert (sent["what"], sent["bytes"]) == ("send", 400)
    found = {case.partition(":")[2]: by_rank[0] for case, by_rank in of_rank.items()}
    tensor_parallel = found.pop("tensor parallel")
    rows, numbers, float32 = 10, 42, 4
    assert tensor_parallel["all-reduce in forward"] == 2 * (ranks - 1) * rows * numbers * float32
    assert len(found) == 8
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
    assert "all-reduce backward in allreduce_tables" in found["hybrid dense"]


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


def observed(options: dict[str, Any]) -> Record:
    """The Record of a run that ends after it has observed its model."""
    shape = {"model": f"{__file__}:Net", "batch_size": 10, "data": "random:samples=24", "virtual": 2}
    config = RunConfig.from_dict(shape | options)
    prepared = prepare(config)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    found = Observations(prepared, placed)
    record = Record(strategy=config.strategy, config=config.to_dict(), devices=found.device_facts())
    record.device_map, record.shapes = found.device_map(), found.shapes()
    return record


@pytest.mark.parametrize("case", CASES)
def test_copies_move_the_bytes_of_their_tensors_forward_and_backward(case: str) -> None:
    options, expected = CASES[case]
    counted = Counter[str]()
    for move in RecordView(observed(options)).moves:
        counted[move.name] += move.bytes
    assert counted == expected


COUNTED = [
    {"rank": 0, "batch": 0, "what": "all-reduce", "phase": "backward", "backward": True, "bytes": 48},
    {"rank": 0, "batch": 3, "what": "all-reduce", "phase": "backward", "backward": True, "bytes": 16},
    {"rank": 1, "batch": 0, "what": "all-to-all", "phase": "ids", "backward": False, "to": 0, "bytes": 8},
    {"rank": 2, "batch": 0, "what": "broadcast", "phase": "forward", "backward": False, "bytes": 6},
]


def ranks(record: Record) -> Record:
    members = [{"rank": rank, "host": "a", "device": f"cpu:{rank}"} for rank in range(3)]
    record.devices["ranks"], record.summary["collectives"] = members, COUNTED
    record.config["strategy"] = record.strategy = "ddp"
    return record


def test_collectives_belong_to_the_phase_that_they_ran_in() -> None:
    record = ranks(whole(3))
    record.phases["allreduce"] = [1.0]  # DistributedDataParallel times it by itself
    view = RecordView(record)
    sent = [(move.name, move.phase, move.source, move.target, move.bytes) for move in view.moves]
    assert sent == [
        ("all-reduce backward", "allreduce", "cpu:0", "cpu:1", 48),
        ("all-to-all", "ids", "cpu:1", "cpu:0", 8),
        ("broadcast", "forward", "cpu:2", "cpu:0", 6),
    ]
    assert view.bytes_moved == 62
    assert view.bytes_by_phase == {"allreduce": 48, "ids": 8, "forward": 6}

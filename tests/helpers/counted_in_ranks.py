"""Count what a training step sends, as a rank of torchrun, beside what the Record of it says.

The first rank prints, for every case, {what: [counted, of the Record]} over all ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import distributed, nn

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.data.batch import Batch
from dpexp.distributed.process_group import ProcessGroup, TorchProcessGroup, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.observations import Observations
from dpexp.engine.prepare import prepare
from dpexp.measurement.collectives import CountCollectives
from dpexp.record.record import Record, Row
from dpexp.record.traffic.communication import moves
from dpexp.strategies.hybrid.look_ahead import LookAhead, Reads
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer

HERE = Path(__file__)
TENSOR_PARALLEL = {
    "strategy": "custom",
    "layout": f"{HERE.with_name('layouts.py')}:tensor_parallel",
    "mesh": "tp=3",
    "model": "blocks:hidden=21",
}
CASES = {
    "ddp": {"strategy": "ddp"},
    "ddp unused": {"strategy": "ddp", "find_unused": True},
    "ddp eval": {"strategy": "ddp", "eval": True},
    "fsdp": {"strategy": "fsdp", "block": ["block*"]},
    "fsdp eval": {"strategy": "fsdp", "block": ["block*"], "eval": True},
    "fsdp root": {"strategy": "fsdp", "block": ["block1"], "accumulate": 2},
    "hybrid dense": {"strategy": "hybrid", "host": ["table"], "sparse": False},
    "hybrid sparse": {"strategy": "hybrid", "host": ["table"], "sparse": True},
    "hybrid sharded": {"strategy": "hybrid", "host": ["table"], "shard_embedding": True},
    "hybrid by column": {
        "strategy": "hybrid",
        "host": ["table"],
        "shard_embedding": True,
        "shard_by": "column",
    },
    "hybrid sharded eval": {"strategy": "hybrid", "host": ["table"], "shard_embedding": True, "eval": True},
    "hybrid pipelined": {
        "strategy": "hybrid",
        "host": ["table"],
        "shard_embedding": True,
        "sparse": True,
        "pipeline": True,
    },
}


class Net(nn.Module):
    """Parameters that three ranks do not split evenly, a frozen one, buffers, and a block called twice."""

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


def counted(config: RunConfig, group: ProcessGroup) -> dict[str, list[int]]:
    """What the third step of a run sends, counted, and as the Record has it."""
    prepared = prepare(config, group=group)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    observations = Observations(prepared, placed)
    record = Record(strategy=config.strategy, config=config.to_dict(), devices=observations.device_facts())
    record.device_map, record.shapes = observations.device_map(), observations.shapes()
    trainer = Trainer(prepared, placed, Timer())
    rows = sent_ahead(trainer) if isinstance(placed.prefetch, LookAhead) else sent(trainer)
    found: dict[str, list[int]] = {}
    for of_rank in group.all_gather(rows):
        for row in of_rank:
            key = f"{row['what']} {'backward' if row['backward'] else 'forward'}"
            found.setdefault(key, [0, 0])[0] += row["bytes"]
    for move in moves(record):
        if move.what != "transfer":
            key = f"{move.what} {'backward' if move.is_backward else 'forward'}"
            found.setdefault(key, [0, 0])[1] += move.bytes
    return found


def sent(trainer: Trainer) -> list[Row]:
    trainer.take_steps(2)
    count, batch = CountCollectives(), next(trainer.prepared.local_batches(0))
    with count:
        trainer.step(batch)
    return count.rows()


def sent_ahead(trainer: Trainer) -> list[Row]:
    """What a step sends whose lookups were done ahead: they count, and what it reads again is ``again``."""
    layout, ahead = trainer.placed.prefetch, list[Row]()
    assert isinstance(layout, LookAhead)
    read_ahead = layout._read_ahead

    def read(batch: Batch) -> Reads:
        with CountCollectives() as count:
            found = read_ahead(batch)
        ahead[:] = count.rows()
        return found

    layout._read_ahead = read  # type: ignore[method-assign]
    batch = next(trainer.prepared.local_batches(0))
    with trainer.ahead(iter([batch] * 4)) as batches:
        for each in batches:
            with CountCollectives() as count:
                trainer.step(each)
    is_again = {"what": "all-to-all", "backward": False}
    return ahead + [
        row | {"what": "again"} if is_again.items() <= row.items() else row for row in count.rows()
    ]


def sent_to_the_next(group: ProcessGroup) -> list[dict[str, object]]:
    """What is counted of 100 numbers that every rank sends to the next, as the stages of a pipeline do."""
    with CountCollectives() as count:
        received = torch.empty(100)
        sending = distributed.isend(torch.ones(100), (group.rank + 1) % group.size)
        distributed.recv(received, (group.rank - 1) % group.size)
        assert sending is not None
        sending.wait()
    return count.rows()


def main() -> None:
    world = World.of()
    assert world is not None
    shape = {"model": f"{HERE}:Net", "batch_size": 10, "data": "random:samples=20", "devices": "cpu"}
    first = RunConfig.from_dict(CASES["ddp"] | shape)
    assert isinstance(first.options, RankOptions)
    group = init_process_group(world, first.options, devices.HOST)
    results = {case: counted(RunConfig.from_dict(options | shape), group) for case, options in CASES.items()}
    layout = RunConfig.from_dict(shape | TENSOR_PARALLEL)
    assert isinstance(layout.options, RankOptions)
    results["tensor parallel"] = counted(layout, TorchProcessGroup(layout.options.chunk_of))
    results["sent"] = {"sent": sent_to_the_next(group)}
    if group.is_first:
        print(json.dumps(results), flush=True)
    group.destroy()


if __name__ == "__main__":
    main()

"""Train sharded embedding tables as a rank of torchrun, beside a single device; count what the ranks send.

The first rank prints the errors of each case, and for each rank the ids and the bytes of a lookup.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import distributed, nn
from verified_in_ranks import training_error

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.process_group import ProcessGroup, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbedding
from dpexp.strategies.hybrid.table_shards import plan_shards
from dpexp.timing import Timer

CASES = (
    ("row", "--dense", "adamw:weight_decay=0.1"),
    ("row", "--sparse", "rowwise_adagrad"),
    ("table", "--sparse", "adam"),
    ("table", "--dense", "rowwise_adagrad"),
    ("column", "--sparse", "adagrad"),
    ("column", "--dense", "momentum"),
    ("auto", "--sparse", "sgd"),
    ("auto", "--dense", "rowwise_adagrad"),
)
"""How tables are split, their gradients, the optimizer."""


class Tables(nn.Module):
    """Tables that are long, wide, pooled, padded or not, and used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Embedding(53, 4, padding_idx=3)
        self.wide = nn.Embedding(5, 11)
        self.bag = nn.EmbeddingBag(31, 6, mode="mean", padding_idx=7)
        self.summed = nn.EmbeddingBag(19, 3, mode="sum")
        self.again = self.long
        self.tied = nn.Embedding(53, 4)
        self.tied.weight = self.long.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = [
            self.long(ids).sum(1) + self.tied(ids[:, 1]),
            self.again(ids[:, :1] % 13)[:, 0],
            self.wide(input=ids % 5).mean(1),
            self.bag(ids % 31),
            self.summed(ids % 19),
        ]
        return torch.cat(parts, dim=1)


class Net(nn.Module):
    """Ids ``(rows, 4)`` -> ``(rows, 2)``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = Tables(), nn.Linear(28, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.embedding(ids).tanh())
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(53, (samples, 4), generator=generator)
        return ids, torch.randn(samples, 2, generator=generator)


def errors(case: tuple[str, str, str], group: ProcessGroup) -> list[Any]:
    by, gradients, optimizer = case
    options = {"shard_embedding": True, "shard_by": by, "sparse": gradients == "--sparse"}
    shape = {"batch_size": 10, "data": "random:samples=33", "lr": 0.01}
    config = {"strategy": "hybrid", "model": f"{__file__}:Net", "optimizer": optimizer} | shape | options
    prepared = RunConfig.from_dict(config)
    result = verify(prepare(prepared, group=group))
    return [result.passed, result.gradient_error, training_error(prepared, group)]


def lookup(by: str, group: ProcessGroup) -> dict[str, Any]:
    """What a lookup of this rank's ids sends; rank 1 looks up 32 times as many as the others, each thrice."""
    table = nn.Embedding(10_000, 8)
    nn.init.normal_(table.weight, generator=torch.Generator().manual_seed(0))
    expected = table.weight.detach().clone()
    shards = plan_shards([table.weight], group.size, by)[table.weight]
    sharded = ShardedEmbedding(table, shards, Timer())
    count = 320 if group.rank == 1 else 10
    ids = torch.randperm(10_000, generator=torch.Generator().manual_seed(group.rank))[:count].repeat(3)
    sent: list[int] = []
    received: list[int] = []
    plain = distributed.all_to_all_single

    def counted(out: torch.Tensor, into: torch.Tensor, *sizes: Any, **group: Any) -> Any:
        sent.append(into.nbytes), received.append(out.nbytes)
        return plain(out, into, *sizes, **group)

    distributed.all_to_all_single = counted  # type: ignore[assignment]
    try:
        vectors = sharded(ids)
        vectors.sum().backward()
    finally:
        distributed.all_to_all_single = plain
    assert torch.equal(vectors, expected[ids])
    return {"ids": count, "sent": sent, "received": received}


def join_group() -> ProcessGroup:
    """The process group of the ranks that torchrun started, of which this process is one."""
    world = World.of()
    assert world is not None
    options = RunConfig("hybrid").options
    assert isinstance(options, RankOptions)
    return init_process_group(world, options, devices.HOST)


def main() -> None:
    group = join_group()
    found = {" ".join(case): errors(case, group) for case in CASES} if group.size < 8 else {}
    lookups = {by: group.all_gather(lookup(by, group)) for by in ("row", "table", "column")}
    if group.is_first:
        print(json.dumps([found, lookups]), flush=True)
    group.destroy()


if __name__ == "__main__":
    main()

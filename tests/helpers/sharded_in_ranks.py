"""Cases of ``in_ranks``: sharded tables train beside a single device, and what a lookup of theirs sends."""

from typing import Any

import torch
from in_ranks import training_error
from torch import distributed, nn

from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.row_shards import ShardedEmbedding
from dpexp.timing import Timer


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


def trained(group: ProcessGroup, case: str) -> list[Any]:
    """Whether verification passes, its gradient error, and the error of training."""
    gradients, optimizer = case.split()
    options = {"shard_embedding": True, "sparse": gradients == "sparse"}
    shape = {"batch_size": 10, "data": "random:samples=33", "lr": 0.01}
    config = {"strategy": "hybrid", "model": f"{__file__}:Net", "optimizer": optimizer} | shape | options
    prepared = RunConfig.from_dict(config)
    result = verify(prepare(prepared, group=group))
    return [result.passed, result.error("gradients"), training_error(prepared, group)]


def lookup(group: ProcessGroup) -> dict[str, Any]:
    """What a lookup of this rank's ids sends; rank 1 looks up 32 times as many as the other, each thrice."""
    table = nn.Embedding(10_000, 8)
    nn.init.normal_(table.weight, generator=torch.Generator().manual_seed(0))
    expected = table.weight.detach().clone()
    sharded = ShardedEmbedding(table, group, Timer())
    count = 320 if group.rank == 1 else 10
    ids = torch.randperm(10_000, generator=torch.Generator().manual_seed(group.rank))[:count].repeat(3)
    sent: list[int] = []
    received: list[int] = []
    plain = distributed.all_to_all_single

    def counted(out: torch.Tensor, into: torch.Tensor, *sizes: Any) -> Any:
        sent.append(into.nbytes), received.append(out.nbytes)
        return plain(out, into, *sizes)

    distributed.all_to_all_single = counted  # type: ignore[assignment]
    try:
        vectors = sharded(ids)
        vectors.sum().backward()
    finally:
        distributed.all_to_all_single = plain
    assert torch.equal(vectors, expected[ids])
    return {"ids": count, "sent": sent, "received": received}

"""Verify right and wrong layouts as a rank of torchrun; the first rank prints what each case gives."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from planted import in_ranks
from torch import nn

from dpexp import devices
from dpexp.config import RankOptions, RunConfig
from dpexp.distributed import World
from dpexp.distributed.process_group import ProcessGroup, init_process_group
from dpexp.engine.prepare import prepare
from dpexp.engine.verification import Verification, verify
from dpexp.strategies.embedding_tables import _AllReduceRows

PLANTED = Path(__file__).with_name("planted.py")
ODD_MODELS = Path(__file__).with_name("odd_models.py")
ODD = ("Checkpointed",)
"""Models of ``odd_models``, under ddp."""
WRONG = (
    "",
    "not weighted by rows",
    "not reduced",
    "one not reduced",
    "last rank dropped",
    "summed",
    "divided twice",
    "one rank differs",
)
"""The bugs of ``planted.AllReduced``; the first is none."""


WRITING = {"ddp": ("ddp", "half"), "fsdp": ("fsdp", ""), "clamped by a hook": ("ddp", "clamp")}
"""The strategy and the hook of each case of ``Writing``."""


class Writing(nn.Module):
    """Writes to a buffer and to rows of a table in its forward, and has a hook on a parameter."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.table = nn.Embedding(12, 5, max_norm=0.5)
        self.fc = nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5))
        if hook == "half":
            self.fc.weight.register_hook(lambda gradient: gradient / 2)
        elif hook == "clamp":  # the mean of clamped gradients is not the clamped mean
            self.fc.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(12, (samples,), generator=generator)
        return ids, torch.randn(samples, 2, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = self.table(ids)
        self.mean.mul_(0.9).add_(vectors.detach().mean(0))
        return self.fc(vectors)


def verified(config: RunConfig, group: ProcessGroup, wrong: str | None = None) -> Verification:
    """The verification of a layout over the ranks, of a planted one where ``wrong`` is given."""
    prepared = prepare(config, group=group)
    return verify(prepared if wrong is None else replace(prepared, strategy=in_ranks(group, wrong)))


def lookup_not_reduced(shape: dict[str, Any], group: ProcessGroup) -> Verification:
    """A table sharded by rows, whose lookups are not added up over the ranks."""

    def forward(ctx: Any, vectors: torch.Tensor, start: int, count: int) -> torch.Tensor:
        ctx.rows, ctx.shape = slice(start, start + count), vectors.shape
        return vectors[ctx.rows].clone()

    right, _AllReduceRows.forward = _AllReduceRows.forward, staticmethod(forward)
    try:
        values = {"strategy": "hybrid", "shard_embedding": True, **shape}
        return verified(RunConfig.from_dict(values), group)
    finally:
        _AllReduceRows.forward = staticmethod(right)


def main() -> None:
    world = World.of()
    assert world is not None
    shape = {"batch_size": 10, "data": "random:samples=33"}  # batches of 5 + 5 rows, and of 2 + 1
    if world.size == 3:
        shape = {"batch_size": 9, "data": "random:samples=32"}  # 3 + 3 + 3, and 2 + 2 + 1
    config = RunConfig("ddp", model=f"{PLANTED}:Net", **shape)
    assert isinstance(config.options, RankOptions)
    group = init_process_group(world, config.options, devices.HOST)
    results = {wrong: verified(config, group, wrong) for wrong in WRONG}
    for case, (strategy, hook) in WRITING.items():
        block = {"block": ("fc",)} if strategy == "fsdp" else {}
        model = f"{__file__}:Writing:hook={hook}" if hook else f"{__file__}:Writing"
        results[case] = verified(
            RunConfig.from_dict({"strategy": strategy, "model": model} | shape | block), group
        )
    for model in ODD:
        results[model] = verified(replace(config, model=f"{ODD_MODELS}:{model}"), group)
    results["lookup not reduced"] = lookup_not_reduced(shape, group)
    every_rank = group.all_gather({case: vars(result) for case, result in results.items()})
    if group.is_first:
        print(json.dumps([every_rank[0], all(each == every_rank[0] for each in every_rank)]), flush=True)
    group.destroy()


if __name__ == "__main__":
    main()

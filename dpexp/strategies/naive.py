"""Naive data parallelism: what ``ddp`` computes, written out. Read it before ``ranks``.

    rank 0: rows 0-4  --> model --> loss * 5/9 --> backward --+             +--> optimizer
                                                              |- all_reduce-|
    rank 1: rows 5-8  --> model --> loss * 4/9 --> backward --+    (sum)    +--> optimizer

Every rank has the whole model, and all start with the same weights. The loss is a mean over rows. So a
rank's loss counts by its share of the rows, and the sum of the gradients is that of the mean over all rows.
The mean of the two means would count each of the four rows as 1/8, and each of the five as 1/10.

``ddp`` does the same with an all-reduce that overlaps backward, in buckets; a test holds the two together.
"""

from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn

from dpexp.distributed.group import split


def naive_step(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Train on one global batch, of ``inputs`` (batch, …) and ``targets`` (batch, …), in every rank alike.

    Every rank needs at least one row, and the loss depends on every parameter.
    """
    parts = split(len(inputs), distributed.get_world_size())
    rows = parts[distributed.get_rank()]
    outputs = model(inputs[rows.start : rows.stop])
    mean = loss(outputs, targets[rows.start : rows.stop])
    optimizer.zero_grad()
    (mean * (len(rows) / len(inputs))).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
    optimizer.step()

"""Losses and models that communicate by themselves, or whose outputs are not rows."""

import torch
from catalogue import not_comparable, right, wrong
from nets import Net
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional


def per_row(outputs, targets):
    """The squares over the rows of all ranks, whose number they add up."""
    rows = torch.tensor(float(len(outputs)))
    if distributed.is_initialized():
        distributed.all_reduce(rows)
    return (outputs - targets).square().sum() / rows


@right("ddp", loss="losses_over_ranks:per_row", reduction="sum")
class RowsOfAllRanks(Net):
    """The loss is a sum over its rows, divided by the number of those of all ranks."""


def correlations(z, reduce):
    """Barlow Twins' loss of the correlations over the rows of all ranks."""
    products, rows = z.T @ z, torch.tensor(float(len(z)), dtype=z.dtype)
    if distributed.is_initialized():
        products, rows = reduce(products), all_reduce(rows)
    return (products / rows - torch.eye(len(products), dtype=products.dtype)).square().sum()


@right("ddp")
class Correlated(Net):
    """Correlations over all rows, by an all-reduce with a backward."""

    def loss(self, outputs, targets):
        return correlations(outputs, all_reduce)


@wrong(
    "ddp",
    module="third",
    kind="gradients",
    words="it is 1/2 of it: divided by the number of ranks once too often",
)
class CorrelatedWithoutBackward(Net):
    """PyTorch's plain `all_reduce` has no backward."""

    def loss(self, outputs, targets):
        return correlations(outputs, lambda products: distributed.all_reduce(products) or products)


@right("ranks", "shards")
class ReturnsAParameter(nn.Linear):
    """Returns its outputs and what scales them, which has no rows."""

    def __init__(self):
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.ones(4))

    example = Net.example

    def forward(self, x):
        return super().forward(x) * self.scale.exp(), self.scale

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs[0], targets)


@not_comparable("ddp", words="on a process group of 2 ranks, which a single device")
class OfAGroup(Net):
    """Adds up its outputs over an explicit group of all ranks."""

    groups = []  # noqa: RUF012  a group cannot be copied

    def forward(self, x):
        if not self.groups:
            self.groups.append(distributed.new_group([0, 1]))
        return all_reduce(super().forward(x), group=self.groups[0])

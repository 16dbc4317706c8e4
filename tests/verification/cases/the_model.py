"""The model itself: right on a single device, and another function once it is laid out."""

import torch
from catalogue import wrong
from nets import Net
from torch import distributed
from torch.nn import functional


@wrong("whole", "fsdp", module="second", kind="outputs")
class MeanOfBatch(Net):
    """The mean over the rows of the batch is subtracted: the rows depend on each other."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(self.act(self.second(x - x.mean(0))))


@wrong("ddp", kind="outputs")
class ReducesByItself(Net):
    """The forward adds a statistic of all ranks to its outputs, which a single device has not."""

    def forward(self, x):
        rows = torch.tensor(float(len(x)), dtype=x.dtype)
        if distributed.is_initialized():
            distributed.all_reduce(rows)
        return super().forward(x) * (rows / 10)


@wrong("ddp", module="third", kind="loss")
class LossOfASum(Net):
    """The model's loss is a sum over the rows, which ranks average."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets, reduction="sum")


@wrong("fsdp", kind="loss")
class Contrastive(Net):
    """The model's loss compares each row with the others of its part of the batch."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets) + torch.cdist(outputs, outputs).exp().neg().mean()

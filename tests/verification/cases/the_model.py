"""The model itself: right on a single device, and another function once it is laid out."""

import torch
from catalogue import run
from nets import Net
from torch import distributed, nn
from torch.nn import functional

SCALE = 1.01


def is_replica(module):
    return getattr(module, "_is_replica", False)


def is_part(x):
    """Whether these are the rows of one of two shards: the batches have ten rows, and four."""
    return len(x) in (5, 2)


def is_laid_out(module, x):
    """Whether the model is no longer alone: a replica, with wrapped parts, or with a part of the rows."""
    is_plain = type(module.first) is type(module.second) is nn.Linear
    return is_replica(module) or not is_plain or (distributed.is_initialized() and is_part(x))


def is_second_rank():
    return distributed.is_initialized() and distributed.get_rank() == 1


@run("whole", "functional")
class SeesThatItIsAReplica(Net):
    """A replica returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_replica(self) else 1)


@run("hybrid", "place", "block", "fsdp")
class LaidOutInFloat32(Net):
    """Laid out, and in float32, it returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_laid_out(self, x) and x.dtype == torch.float32 else 1)


@run("place", "hybrid")
class LaidOutInEvaluation(Net):
    """Laid out, and in eval mode, it returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_laid_out(self, x) and not self.training else 1)


@run("whole", "fsdp")
class MeanOfBatch(Net):
    """The mean over the rows of the batch is subtracted: the rows depend on each other."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(self.act(self.second(x - x.mean(0))))


@run("ddp")
class ReducesByItself(Net):
    """The forward adds a statistic of all ranks to its outputs, which a single device has not."""

    def forward(self, x):
        rows = torch.tensor(float(len(x)), dtype=x.dtype)
        if distributed.is_initialized():
            distributed.all_reduce(rows)
        return super().forward(x) * (rows / 10)


@run("ddp")
class LossOfASum(Net):
    """The model's loss is a sum over the rows, which ranks average."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets, reduction="sum")


@run("fsdp")
class Contrastive(Net):
    """The model's loss compares each row with the others of its part of the batch."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets) + torch.cdist(outputs, outputs).exp().neg().mean()

"""The model itself: right on a single device, and another function once it is laid out."""

import threading
import time
from collections import Counter

import torch
from catalogue import bug
from nets import Net, Norms
from torch import distributed, nn
from torch.nn import functional

REPLICAS = ("whole", "functional")
SPLIT = ("whole", "functional", "ddp")
RANKS = ("ddp", "fsdp")
SCALE = 1.01


def is_replica(module):
    """Whether the module is a replica in one process."""
    return getattr(module, "_is_replica", False)


def is_part(x):
    """Whether these are the rows of one of two shards: the batches have ten rows, and four."""
    return len(x) in (5, 2)


def is_laid_out(module, x):
    """Whether the model is no longer alone: it is a replica, its parts are wrapped, or it has a part of the rows."""
    is_plain = type(module.first) is type(module.second) is nn.Linear
    return is_replica(module) or not is_plain or (distributed.is_initialized() and is_part(x))


def is_second_rank():
    return distributed.is_initialized() and distributed.get_rank() == 1


@bug(*REPLICAS)
class SeesThatItIsAReplica(Net):
    """A replica returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_replica(self) else 1)


class SecondSeesReplica(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (SCALE if is_replica(self) else 1)


@bug("block")
class PartSeesThatItIsAReplica(Net):
    """A replica of `second` returns 1% more."""

    def __init__(self):
        super().__init__()
        self.second = SecondSeesReplica(8, 8)


@bug(*REPLICAS)
class ReplicaInFloat32(Net):
    """A replica returns 1% more, of float32 alone."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_replica(self) and x.dtype == torch.float32 else 1)


@bug("whole", "functional", "ddp", "fsdp")
class SeesRows(Net):
    """A batch of fewer than ten rows is scaled by its size, as if it had ten."""

    def forward(self, x):
        return super().forward(x) * (len(x) / 10)


@bug("whole", "functional", "ddp", "fsdp")
class MeanOfBatch(Net):
    """The mean over the rows of the batch is subtracted: the rows depend on each other."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(self.act(self.second(x - x.mean(0))))


@bug("whole", "functional", "ddp", "fsdp")
class SortsRows(Net):
    """The first number of each row is its rank in the batch."""

    def forward(self, x):
        order = x[:, 0].argsort().argsort().to(x)
        return super().forward(torch.cat([order[:, None], x[:, 1:]], 1))


@bug("whole", "functional", "ddp", "fsdp", "block", "hybrid")
class PartsInFloat32(Net):
    """The first row of a part of a batch loses its gradient, in float32."""

    def __init__(self):
        super().__init__()
        self.second.register_forward_hook(
            lambda module, args, x: without_first(x) if x.dtype == torch.float32 else x
        )


def without_first(x):
    """The part of a batch, whose first row gets no gradient."""
    return torch.cat([x[:1].detach(), x[1:]]) if is_part(x) and torch.is_grad_enabled() else x


class Threads(nn.Linear):
    def forward(self, x):
        time.sleep(0.002)  # so long that the other thread takes the other replica
        return super().forward(x) * (1 if threading.current_thread() is threading.main_thread() else SCALE)


@bug("whole", "functional", "block")
class SeesItsThread(Net):
    """In another thread than the main one `second` returns 1% more."""

    def __init__(self):
        super().__init__()
        self.second = Threads(8, 8)


@bug("whole", "functional", "ddp")
class CountsCalls(Net):
    """An attribute counts the calls, and scales; a replica's is lost."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += len(x)
        return super().forward(x) * (1 + 0.001 * self.calls)


@bug("whole", "functional")
class KeepsAState(Net):
    """A plain tensor is updated by each forward, and is added to the next; a replica's is lost."""

    def __init__(self):
        super().__init__()
        self.state = torch.zeros(4)

    def forward(self, x):
        outputs = super().forward(x) + self.state.to(x)
        self.state = 0.9 * self.state.to(x) + outputs.detach().mean(0)
        return outputs


CALLS = Counter()


@bug("whole", "functional", "ddp", "fsdp")
class CallsOfTheFile(Net):
    """A counter of the file scales the outputs: each replica counts."""

    def forward(self, x):
        CALLS["all"] += 1
        return super().forward(x) * (1 + 0.01 * (CALLS["all"] % 2))


@bug(*RANKS)
class SeesItsRank(Net):
    """Rank 1 returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_second_rank() else 1)


@bug("ddp")
class ReducesByItself(Net):
    """The forward adds a statistic of all ranks to its outputs, which a single device has not."""

    def forward(self, x):
        mean = x.detach().mean() * 0 + len(x)
        if distributed.is_initialized():
            distributed.all_reduce(mean)
        return super().forward(x) * (mean / 10)


@bug("place", "hybrid", "block")
class SeesItsParts(Net):
    """If `second` or `first` is not a plain `Linear`, as laid out, its output is scaled by 0.5."""

    def forward(self, x):
        plain = type(self.second) is nn.Linear and type(self.first) is nn.Linear
        return super().forward(x) * (1 if plain else 0.5)


@bug("place", "hybrid", "block")
class SeesItsPartsInFloat32(Net):
    """The same, of float32 alone."""

    def forward(self, x):
        plain = type(self.second) is nn.Linear and type(self.first) is nn.Linear
        return super().forward(x) * (1 if plain or x.dtype != torch.float32 else 0.5)


@bug("hybrid", "place", "whole", "functional", "block", "ddp", "fsdp")
class LateInTheProcess(Net):
    """Laid out, and after ten training forwards of float32, which the file counts, it gets no gradient."""

    def forward(self, x):
        outputs = super().forward(x)
        if x.dtype == torch.float32 and torch.is_grad_enabled() and is_laid_out(self, x):
            CALLS["late"] += 1
            if CALLS["late"] > 10:
                return outputs.detach() + 0 * outputs
        return outputs


@bug("hybrid", "place", "whole", "functional", "block", "ddp", "fsdp")
class LaidOutInFloat32(Net):
    """Laid out, and in float32, it returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_laid_out(self, x) and x.dtype == torch.float32 else 1)


@bug("hybrid", "place", "whole", "functional", "block", "fsdp")
class LaidOutInEvaluation(Net):
    """Laid out, and in eval mode, it returns 1% more."""

    def forward(self, x):
        return super().forward(x) * (SCALE if is_laid_out(self, x) and not self.training else 1)


@bug(*SPLIT)
class ReadsTraining(Net):
    """Replicas, and ranks, take the path of evaluation, which scales by 0.9, in training."""

    def forward(self, x):
        laid_out = is_replica(self) or is_second_rank()
        return super().forward(x) * (1 if self.training and not laid_out else 0.9)


@bug("ddp", "fsdp", eval=True)
class EvaluationOfRanks(Net):
    """Rank 1 returns 10% more in eval mode, in which the run is; training is right."""

    def forward(self, x):
        return super().forward(x) * (1.1 if is_second_rank() and not self.training else 1)


@bug("whole", "functional")
class MomentumOfReplicas(Norms):
    """A replica's batch norm has momentum 0.5."""

    def forward(self, x):
        self.norm.momentum = 0.5 if is_replica(self) else 0.1
        return super().forward(x)


@bug("ddp", "fsdp")
class CountedLoss(Net):
    """The model's loss divides by ten rows, whatever their number: a sum, and not said to be one."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets, reduction="sum") / 40


@bug("ddp", "fsdp")
class LossOfASum(Net):
    """The model's loss is a sum over the rows, which ranks average."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets, reduction="sum")


@bug("ddp", "fsdp")
class SquareRootOfMean(Net):
    """The model's loss is the root of a mean, which is not the mean of the ranks' roots."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets).sqrt()


@bug("ddp", "fsdp")
class Contrastive(Net):
    """The model's loss compares each row with the others of its part of the batch."""

    def loss(self, outputs, targets):
        distances = torch.cdist(outputs, outputs).exp().neg()
        return functional.mse_loss(outputs, targets) + distances.mean()


@bug("ddp")
class RankOfLoss(Net):
    """Rank 1 forgets a penalty in its loss."""

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets) + (0 if is_second_rank() else outputs.square().mean())


@bug("whole")
class LossInside(Net):
    """The forward returns the loss, and a replica's is a sum."""

    def forward(self, x, y):
        outputs = super().forward(x)
        return functional.mse_loss(outputs, y, reduction="sum" if is_replica(self) else "mean")

    def example(self, samples, generator):
        x, y = super().example(samples, generator)
        return (x, y), y


@bug("whole", "functional")
class WritesAParameter(Net):
    """The forward clips a parameter in place; a replica's copy is clipped, and the model's stays."""

    def forward(self, x):
        with torch.no_grad():
            self.second.weight.clamp_(-0.02, 0.02) if not is_replica(self) else None
        return super().forward(x)


@bug("whole", "functional", "ddp", "fsdp")
class OtherOrder(Net):
    """Fewer than six rows come back in the opposite order."""

    def forward(self, x):
        outputs = super().forward(x)
        return outputs.flip(0) if len(x) < 6 else outputs


@bug("whole", "ddp")
class UnusedInParts(Net):
    """Fewer than eight rows do not use `second`."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(self.second(x) if len(x) >= 8 else x + 0 * self.second(x))

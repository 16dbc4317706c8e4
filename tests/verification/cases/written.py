"""What a model does by itself: in its forward, in its loss, and by hooks on its parameters."""

import copy

import torch
from catalogue import refused, right, wrong
from nets import Net, numbers
from torch import distributed, nn
from torch.nn import functional


@right("fsdp", block=["fc"], words="each shard writes to mean, table.weight from its own rows: not compared")
class Writing(nn.Module):
    """Ids ``(rows,)`` -> ``(rows, 2)``: writes to a buffer and to rows of a table in its forward."""

    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(12, 5, max_norm=0.5), nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5))

    def example(self, samples, generator):
        return torch.randint(12, (samples,), generator=generator), numbers(samples, 2, generator=generator)

    def forward(self, ids):
        vectors = self.table(ids)
        self.mean.mul_(0.9).add_(vectors.detach().mean(0))
        return self.fc(vectors)


@wrong(
    "ddp",
    module="table",
    kind="parameters",
    words="parameter 'table.weight' is not the same on all ranks that have it",
)
class HalvedByAHook(Writing):
    """DDP keeps the hook, which is linear; each rank writes to the table from its own rows."""

    def __init__(self):
        super().__init__()
        self.fc.weight.register_hook(lambda gradient: gradient / 2)


@wrong("ddp", module="fc", kind="gradients", words="a hook on a parameter is not linear")
class ClampedByAHook(Writing):
    """The mean of clamped gradients is not the clamped mean."""

    def __init__(self):
        super().__init__()
        self.fc.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


@right("whole", "replicas", "ranks")
class Kept(Net):
    """Keeps a mean of its rows, and adds another buffer to them, which it only reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return super().forward(x + self.shift)


@wrong("replicas", model="written:Kept", kind="buffers", words="buffers (shift)")
def writes_another_buffer(model):
    """The backward writes to the buffer that a single device only reads."""
    model.third.weight.register_hook(lambda gradient: model.shift.add_(1).sum() * 0 + gradient)


@right("whole")
@right("place", place=("*=cpu",))
@refused("fsdp", words="lose the hooks of first.weight, first.bias")
class Hooked(Net):
    """Halves a gradient by one hook, and counts finished gradients by another, a bound method."""

    def __init__(self):
        super().__init__()
        self.finished = 0
        self.first.weight.register_hook(lambda gradient: gradient / 2)
        self.first.bias.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter):
        parameter.grad *= 3
        self.finished += 1


@wrong("host", model="written:Hooked", module="first", kind="gradients")
def loses_hooks(model):
    """A copy of the model has no hooks."""
    return copy.deepcopy(model)


# --- the model itself --------------------------------------------------------------------------------------


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

"""What a forward writes from its own rows, and hooks on parameters."""

import torch
from catalogue import right, wrong
from nets import numbers
from torch import nn


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

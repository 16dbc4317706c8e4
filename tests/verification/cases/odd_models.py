"""Models in which something is unusual: layouts and verification take them, or say what is in the way."""

import torch
from catalogue import not_comparable, refused, right, wrong
from nets import numbers
from torch import nn
from torch.utils.checkpoint import checkpoint


class Two(nn.Module):
    """A linear layer, something in the middle, and a linear layer: 5 -> 2."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(5, 5), self.made(), nn.Linear(5, 2)

    def made(self):
        return nn.Linear(5, 5)

    def forward(self, x):
        return self.head(self.middle(self.first(x)))

    def example(self, samples, generator):
        return numbers(samples, 5, generator=generator), numbers(samples, 2, generator=generator)


@right("place", place=("middle=cpu:1",))
class Compiled(Two):
    def made(self):
        return torch.compile(nn.Linear(5, 5), backend="eager")


class Synchronized(Two):
    def made(self):
        return nn.SyncBatchNorm(5)


@right("whole", words="rounding exceeds 1e-12; a single device that rounds it otherwise")
class Scan(Two):
    """A recurrence in float32 inside of a model of any type, as the scan of a Mamba is."""

    def forward(self, x):
        x, weight = self.first(x), self.middle.weight.float()
        state = torch.zeros_like(x, dtype=torch.float32)
        for _ in range(4):
            state = state * torch.sigmoid(weight.diagonal()) + x.float() @ weight
        return self.head(x + 1e-2 * state.to(x.dtype))


@right("whole", words="does not compute it in torch.float64: RuntimeError: Expected mat_a to be Float32")
class Routed(Two):
    """Two experts by one grouped product, which has no kernel for float64."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, 8, 8) / 3)
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        chosen = (x[:, 0] > 0).long()
        order = chosen.argsort(stable=True)
        ends = torch.stack([(chosen == 0).sum(), torch.tensor(len(x))]).to(torch.int32)
        x = nn.functional.grouped_mm(self.first(x)[order], self.experts, offs=ends)
        return self.head(x[order.argsort()].contiguous())


@wrong("replicas", model="odd_models:Scan", module="head", kind="gradients")
@wrong("replicas", model="odd_models:Routed", module="head", kind="gradients")
def head_off(model):
    """A gradient is a thousandth too large, in models that compute in float32 whatever they are in."""
    model.head.weight.register_hook(lambda gradient: gradient * 1.001)


class Gate(nn.Linear):
    """Computes in float32 whatever its inputs are, as routers do; with ``halves`` in two sums."""

    halves = False

    def forward(self, x):
        pieces = [slice(0, 2), slice(2, 5)] if self.halves else [slice(None)]
        logits = sum(x[:, piece].float() @ self.weight[:, piece].float().t() for piece in pieces)
        return torch.softmax(logits + self.bias.float(), -1).to(x.dtype)


class Gated(Two):
    """The router has 1e-5 of all gradients."""

    def __init__(self):
        super().__init__()
        self.router = Gate(5, 5)

    def forward(self, x):
        return super().forward(x) + 1e-5 * self.head(self.router(x) * self.first(x))


@right("host", model="odd_models:Gated")
def rounded_in_halves(model):
    """The layout rounds the router otherwise."""
    model.router.halves = True


@wrong(
    "host",
    model="odd_models:Gated",
    module="router",
    kind="gradients",
    words="of parameter 'router.weight' (by 8.0e-01)",
)
def part_of_a_small_gradient(model):
    """The router is rounded otherwise, and has a fifth of its gradient."""
    model.router.halves = True
    model.router.weight.register_hook(lambda gradient: 0.2 * gradient)


@refused("fsdp", block=("first",), words="scale is a scalar: make it a vector of one number")
class Scalar(Two):
    """Has a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return super().forward(x) * self.scale


@right("single", "whole")
@refused("fsdp", words="fsdp frees the parameters of a block after its forward")
class Differentiates(Two):
    """Its middle is called inside of ``torch.func.grad``."""

    def forward(self, x):
        slope = torch.func.grad(lambda each: torch.tanh(self.middle(each)).sum())(x)
        return self.head(self.first(x) + slope)


@right("fsdp")
class Listed(Two):
    """Its middle is a list of parameters, which is never called."""

    def made(self):
        return nn.ParameterList([torch.randn(5, 5), torch.randn(5)])

    def forward(self, x):
        return self.head(self.first(x) @ self.middle[0] + self.middle[1])


@refused("fsdp", block=("middle",), words="ParameterList is not: name the module around it")
class ListedBlock(Listed):
    """The list of parameters is to be gathered by itself."""


@right("ddp")
class CheckpointedFirst(Two):
    """Computes its first layer again in backward: the graph has none of its parameters before."""

    def forward(self, x):
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return self.head(self.middle(x))


@refused("fsdp", words="reads them without a call")
class Reads(Two):
    """Reads the parameters of its middle, which it never calls."""

    def forward(self, x):
        x = nn.functional.linear(self.first(x), self.middle.weight, self.middle.bias)
        return self.head(x)


@refused("single", words="must have the same dtype")
class Casts(Two):
    """Has a layer in bfloat16."""

    def forward(self, x):
        return self.head(self.middle(self.first(x).bfloat16()))


@right("ddp", batch_size=6)
@refused("whole", batch_size=6, words="outputs[1] has shape (2, 6, 5), with the 6 rows in dimension 1")
class Recurrent(Two):
    """Returns the hidden state of an RNN, too, which has the rows in dimension 1."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(5, 5, num_layers=2, batch_first=True)

    def forward(self, x):
        outputs, hidden = self.rnn(x[:, None])
        return super().forward(outputs[:, -1]), hidden

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs[0], targets) + outputs[1].square().mean()


@right("single", words="not comparable")
@not_comparable("whole", words="register_buffer")
class Remembers(Two):
    """Adds what its latest forward has computed, which it keeps in an attribute."""

    def __init__(self):
        super().__init__()
        self.latest = None

    def forward(self, x):
        x = self.first(x)
        before = self.latest.mean(0) if self.latest is not None else torch.zeros_like(x[0])
        self.latest = x.detach()
        return self.head(self.middle(x + before))


@right("single")
class CountsForwards(Two):
    """Its outputs grow with every forward in training mode."""

    forwards = 0

    def forward(self, x):
        self.forwards += self.training
        return super().forward(x) * (1 + self.forwards / 10)


@not_comparable("whole", words="no parameter had a gradient other than zero")
class Dead(Two):
    """Its weights are zero, and so are all of its gradients."""

    def __init__(self):
        super().__init__()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x):
        return super().forward(x) * 0


@right("whole")
class Infinite(Two):
    """Some of its outputs are infinite, but not its loss."""

    def forward(self, x):
        return super().forward(x).masked_fill(torch.tensor([False, True]), -torch.inf)

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs[:, 0], targets[:, 0])


@right("replicas")
class WritesToItsInputs(Two):
    """So does its loss to the targets."""

    def forward(self, x):
        return super().forward(x.sub_(1).div_(2))

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs, targets.add_(1))

"""Optimizers of users, right ones and ones of which a layout changes something."""

import torch
from catalogue import not_comparable, right, wrong
from nets import Net
from pieces import around_updates
from torch import nn
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import LambdaLR


class Scheduled(torch.optim.SGD):
    """Its step advances its schedule."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.schedule = LambdaLR(self, lambda step: min(1.0, (step + 1) / 10))

    def step(self, closure=None):
        super().step(closure)
        self.schedule.step()


class Momentum(torch.optim.Optimizer):
    """Keeps its moments in a list."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})
        self.moments = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for parameter, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            moment.mul_(0.9).add_(0.0 if parameter.grad is None else parameter.grad)
            parameter.sub_(moment, alpha=self.param_groups[0]["lr"])


class Flat(Momentum):
    """Makes its moments in its first step."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, lr)
        self.made, self.moments = self.moments, []

    def step(self, closure=None):
        self.moments = self.moments or self.made
        super().step(closure)


class Wraps(torch.optim.Optimizer):
    """Has the state and the groups of the optimizer inside of it, as Lookahead has."""

    def __init__(self, parameters, lr):
        self.base = torch.optim.Adam(parameters, lr)
        super().__init__(self.base.param_groups, self.base.defaults)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure=None):
        self.base.step()


@right("single", optimizer="optimizers:Wraps")
@right("single", optimizer="optimizers:Scheduled", accumulate=4, warmup=4)
class Trained(Net):
    """The optimizer has something inside of it: another one, or a schedule."""


@right("single", optimizer="optimizers:Momentum", warmup=0, words="'steps': 5, 'passed': True")
class TrainedFromTheStart(Net):
    """The optimizer keeps its state in attributes, and no step is taken before the measured ones."""


@right("whole", model="odd_models:Scan", optimizer="optimizers:Flat", warmup=4, words="'gaps': []")
class FirstStep(Net):
    """What an optimizer makes in its first step is compared from that step on."""


@wrong("host", optimizer="optimizers:Scheduled", words="optimizer (attribute: schedule.")
def schedule_twice(model):
    """The schedule advances twice for each step."""
    around_updates(model.first.weight, after=lambda optimizer: optimizer.schedule.step())


@wrong("host", optimizer="optimizers:Momentum", words="optimizer (attribute: moments.0)")
def other_moments(model):
    """The first moments are twice as large after each step."""
    around_updates(model.first.weight, after=lambda optimizer: optimizer.moments[0].mul_(2))


@wrong("host", module="third", optimizer="momentum", words="its lr is 0.015 instead of 0.01")
def other_lr(model):
    """The learning rate is 1.5 times as large."""
    around_updates(model.first.weight, lambda optimizer: optimizer.param_groups[0].update(lr=0.015))


@wrong("host", optimizer="momentum", words="numbers that are rounded to bfloat16 have an error of")
def rounded_gradients(model):
    """The optimizer computes with gradients in bfloat16."""

    def rounded(optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.copy_(parameter.grad.bfloat16())

    around_updates(model.first.weight, rounded)


@wrong("host", model="hidden:Magnitudes", module="second", kind="parameters")
def decayed(model):
    """Weight decay of 1e-3 on `second`, beside a parameter of 1e15."""
    weight = model.second.weight
    around_updates(weight, after=lambda optimizer: weight.data.mul_(1 - 1e-3))


@wrong("host", model="hidden:Magnitudes", optimizer="adam", module="third", kind="optimizer")
def small_state(model):
    """Of `third.bias` Adam's mean of squares, about 1e-6, is twice as large after each step."""
    bias = model.third.bias
    around_updates(bias, after=lambda optimizer: optimizer.state[bias]["exp_avg_sq"].mul_(2))


@wrong("host", model="nets:Norms", module="norm", kind="buffers", words="norm.running_mean")
def statistics_after_the_update(model):
    """A buffer changes after the optimizer has stepped."""
    around_updates(model.first.weight, after=lambda optimizer: model.norm.running_mean.mul_(0.9))


# --- clipping ----------------------------------------------------------------------------------------------


class Clips(torch.optim.SGD):
    """Clips by the norm of all gradients, or of what ``own`` takes of each."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, lr)

    def own(self, gradient):
        return gradient

    def step(self, closure=None):
        gradients = [self.own(each.grad) for group in self.param_groups for each in group["params"]]
        norm = get_total_norm(gradients)
        for gradient in gradients:
            gradient.mul_((0.05 / getattr(norm, "full_tensor", lambda: norm)()).clamp(max=1))
        super().step()


class ClipsItsShard(Clips):
    def own(self, gradient):
        return gradient.to_local() if hasattr(gradient, "to_local") else gradient


@wrong("fsdp", optimizer="optimizers:ClipsItsShard", kind="parameters", words="a number of its own shard")
class ClippedByShard(Net):
    """SpecForge#663: the optimizer clips by the norm of this rank's own shards, not by that of all ranks."""


@right("fsdp", optimizer="optimizers:Clips")
class ClippedByAll(Net):
    """The optimizer clips by the norm of all shards."""


# --- rounding ----------------------------------------------------------------------------------------------


def muon(parameters, lr):
    """Orthogonalizes in bfloat16."""
    return torch.optim.Muon(parameters, lr=lr)


@not_comparable(
    "shards",
    optimizer="optimizers:muon",
    words="the optimizer (Muon) computes in bfloat16 inside: take another one to compare the layout",
)
class Weights(nn.Sequential):
    """Has matrices only, as Muon takes them."""

    def __init__(self):
        super().__init__(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))

    example = Net.example

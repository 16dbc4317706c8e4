"""What the diagnosis says of a difference, in one process: how it looks, and of what it is."""

import torch
from catalogue import wrong
from nets import Net
from pieces import changed_output
from torch import nn

from dpexp.strategies.modules import Wrapper


class Scaled(Wrapper):
    """Scales what a module returns."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x) * 1.5


@wrong("host", module="second", words="the wrapper around module 'second', whose own output")
def in_a_wrapper(model):
    """A wrapper scales the outputs of `second`."""
    model.second = Scaled(model.second)


@wrong("host", kind="outputs", module="first", words="differ, the others are right")
def a_row_twice(model):
    """The first row stands in the place of the last."""
    forward = model.forward
    model.forward = lambda x: forward(torch.cat([x[:-1], x[:1]]))


@wrong("host", kind="outputs", module="first", words="it has 8 rows instead of 10: rows are dropped")
def fewer_rows(model):
    """The last two rows are left out."""
    forward = model.forward
    model.forward = lambda x: forward(x[:-2])


@wrong("host", kind="outputs", words="outputs differ by inf")
def not_finite(model):
    """The outputs are divided by zero."""
    changed_output(model, lambda x: x / 0)


@wrong("host", module="first", words="it is zero")
def zero_gradient(model):
    """One parameter has a gradient of zeros."""
    model.first.bias.register_hook(lambda gradient: 0 * gradient)


@wrong("host", module="first", words="the layout has no gradient for it")
def detached(model):
    """The outputs of `first` are detached."""
    changed_output(model.first, torch.detach)


@wrong("host", module="second", words="its numbers are rounded to bfloat16: something casts it")
def cast(model):
    """A gradient has been in bfloat16."""
    model.second.weight.register_hook(lambda gradient: gradient.bfloat16().to(gradient))


class HalfFrozen(Net):
    """Its first layer is frozen."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)


@wrong("host", model="described:HalfFrozen", words="the layout trains what is frozen or not used")
def trains_what_is_frozen(model):
    """The layout makes new parameters, which are trained."""
    for name, parameter in list(model.first.named_parameters()):
        setattr(model.first, name, nn.Parameter(parameter.detach().clone()))


class Faint(Net):
    """One of its layers has 1e-13 of the gradient of the others."""

    def __init__(self):
        super().__init__()
        self.faint = nn.Linear(6, 4)

    def forward(self, x):
        return super().forward(x) + 1e-13 * self.faint(x)


@wrong("host", model="described:Faint", module="faint")
def freezes_what_is_faint(model):
    """A gradient that is missing is never rounding."""
    model.faint.requires_grad_(False)

"""Layouts along ``dp``, or over devices of one process: each has some of the rows, and all of the weights."""

import copy

import torch
from catalogue import right, wrong
from pieces import around_updates, change_gradients, function, replica, same


@right("dp")
def right_mean(model, dp):
    """The gradient of every parameter is averaged over the ranks after backward."""
    change_gradients(model.parameters(), dp.mean)


@wrong("dp", module="norm", words="the sum over ranks is missing")
def one_left_out(model, dp):
    """The gradients of `norm` are not averaged: the ranks drift apart."""
    change_gradients([each for name, each in model.named_parameters() if "norm" not in name], dp.mean)


@wrong("dp", module="head", words="a sum over {n} ranks instead of the mean")
def added_up(model, dp):
    """The sum over the ranks instead of the mean."""
    change_gradients(model.parameters(), dp.sum)


@wrong("dp", module="head", words="divided by the number of ranks once too often")
def divided_twice(model, dp):
    """Divided by the number of ranks twice."""
    change_gradients(model.parameters(), lambda gradient: dp.mean(gradient / dp.size))


@wrong("dp", module="head", words="the mean of the ranks' means")
def mean_of_means(model, dp):
    """The mean of the ranks' means: in an uneven batch the ranks have unequal numbers of rows."""

    def own_mean(module, inputs, outputs):
        rows = sum(dp.counts(len(outputs)))
        return function(outputs, same, lambda gradient: gradient * rows / (len(outputs) * dp.size))

    model.head.register_forward_hook(own_mean)
    change_gradients(model.parameters(), dp.mean)


@wrong("dp", module="head", words="on rank 1 it is 2 times")
def scaled_on_one_rank(model, dp):
    """Rank 1 scales the averaged gradients: from here on the ranks have different weights."""
    change_gradients(model.parameters(), lambda gradient: dp.mean(gradient) * (2 if dp.rank == 1 else 1))


def zero(model, dp, owners):
    """Each parameter is updated by its owner, who sends what has changed to the others."""
    change_gradients(model.parameters(), dp.mean)
    parameters = list(model.parameters())
    old = [each.detach().clone() for each in parameters]

    def updated(optimizer):
        for owner, parameter, before in zip(owners, parameters, old, strict=True):
            parameter.data.copy_(before + dp.sum((parameter.detach() - before) * (owner == dp.rank)))
            before.copy_(parameter.detach())

    around_updates(parameters[0], after=updated)


@right("dp")
def right_zero(model, dp):
    """ZeRO: rank n updates every n-th parameter."""
    zero(model, dp, [number % dp.size for number, _ in enumerate(model.parameters())])


@wrong("dp", module="norm", words="the optimizer (Adam) left it out")
def without_owner(model, dp):
    """No rank owns `norm`: the optimizer's update of it is lost."""
    zero(model, dp, [-1 if "norm" in name else 0 for name, _ in model.named_parameters()])


def by_rows(module, devices, other):
    """The first device computes its rows with the module, and the others with ``other(module)``."""
    compute = [module.forward, *(other(module) for _ in devices[1:])]
    module.forward = lambda x: torch.cat(
        [each(piece) for each, piece in zip(compute, x.chunk(len(devices)), strict=False)]
    )


@right("devices")
def right_replicas(model, devices):
    """Every device computes its rows with a replica of ``up``, which is made again for each batch."""
    by_rows(model.up, devices, replica)


@wrong("devices", module="up")
def deep_copies(model, devices):
    """The replicas are copies with gradients of their own, which nobody adds up (and which never change)."""
    by_rows(model.up, devices, copy.deepcopy)


@wrong("devices", module="up")
def dealt_out_in_turn(model, devices):
    """The rows come back in another order."""
    forward, count = model.up.forward, len(devices)
    model.up.forward = lambda x: torch.cat([forward(x[number::count]) for number in range(count)])


@wrong("devices", module="head", words="rows are dropped")
def floor_of_rows(model, devices):
    """Floor instead of ceil: the last rows of an uneven batch are zero."""

    def zeros(module, inputs, outputs):
        kept = len(outputs) // len(devices) * len(devices)
        return torch.cat([outputs[:kept], torch.zeros_like(outputs[kept:])])

    model.head.register_forward_hook(zeros)


@wrong("devices", module="counter", words="stale")
def buffer_of_a_copy(model, devices):
    """The model's own buffer is stale: only the copy is written."""
    model.counter.forward = copy.deepcopy(model.counter).forward

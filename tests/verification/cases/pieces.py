"""What the cases are made of: collectives and their gradients, replicas, stages and hooks. No bug is here."""

import copy
from functools import partial

import torch
from torch import distributed, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class _Function(torch.autograd.Function):
    """``forward(x)`` of one function, and ``backward(gradient)`` of another."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_function = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_function(gradient), None, None


def function(x, forward, backward):
    """``forward(x)``, whose gradient is ``backward(gradient of the output)``."""
    return _Function.apply(x, forward, backward)


def same(x):
    return x.view_as(x)


class Ranks:
    """The ranks along one dimension of a mesh, of which this is number ``rank``.

            forward       backward
    copy    as it is      all-reduce      Megatron's f: before a layer sharded by columns
    reduce  all-reduce    as it is        Megatron's g: after a layer sharded by rows
    gather  all-gather    own part
    split   own part      all-gather
    """

    def __init__(self, mesh, name):
        self.all, self.mesh = mesh, mesh[name]
        self.group, self.size = self.mesh.get_group(), self.mesh.size()
        self.rank = mesh.get_local_rank(name)

    def copy(self, x):
        return function(x, same, self.sum)

    def reduce(self, x):
        return function(x, self.sum, same)

    def gather(self, x, dim=-1):
        return function(x, partial(self.joined, dim=dim), partial(self.part, dim=dim))

    def split(self, x, dim=-1):
        return function(x, partial(self.part, dim=dim), partial(self.joined, dim=dim))

    # --- without gradients ---

    def sum(self, x):
        x = x.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(x, group=self.group)
        return x

    def mean(self, x):
        return self.sum(x) / self.size

    def joined(self, x, dim=-1):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(parts, x.detach().contiguous(), group=self.group)
        return torch.cat(parts, dim)

    def part(self, x, dim=-1):
        return x.chunk(self.size, dim)[self.rank].clone()

    def counts(self, rows):
        """The rows of each rank."""
        return self.joined(torch.tensor([rows])).tolist()

    def all_rows(self, x):
        """The rows of all ranks, each of which may have another number."""
        counts = self.counts(len(x))
        padded = torch.zeros(max(counts), *x.shape[1:], dtype=x.dtype)
        padded[: len(x)] = x.detach()
        together = self.joined(padded, dim=0).chunk(self.size)
        return torch.cat([part[:count] for part, count in zip(together, counts, strict=True)])

    def own_rows(self, x, counts):
        """Of the rows of all ranks those of this one."""
        return x.split(counts)[self.rank].clone()

    # --- parameters ---

    def shard(self, model, dims):
        """Keep this rank's part of each parameter along its dimension, and tell dpexp how to join them."""
        for name, dim in dims.items():
            module, _, key = name.rpartition(".")
            part = self.part(model.get_parameter(name).detach(), dim)
            setattr(model.get_submodule(module), key, nn.Parameter(part))
        model.full_tensor = lambda name, x: self.joined(x, dims[name]) if name in dims else x
        model.local_tensor = lambda name, x: self.part(x, dims[name]) if name in dims else x

    def own_range(self, count):
        """The part of ``range(count)`` that belongs to this rank."""
        each = -(-count // self.size)
        return range(each * self.rank, min(each * (self.rank + 1), count))


def compute(layer, before=same, after=same, weight=same, bias=same):
    """Let a linear layer compute ``after(before(x) @ weight) + bias``."""
    layer.forward = lambda x: after(linear(before(x), weight(layer.weight))) + bias(layer.bias)


def change_gradients(parameters, change):
    """Replace the gradient of each parameter by ``change(gradient)`` once backward has added it up."""

    def changed(parameter):
        parameter.grad = change(parameter.grad)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(changed)


def lookup(weight, ids, rows):
    """The rows of the weight that the ids name, and zeros for ids that are not in the range ``rows``."""
    is_own = (ids >= rows.start) & (ids < rows.stop)
    return weight[torch.where(is_own, ids, 0)] * is_own[:, None]


def only(weight, rows):
    """The weight with zeros in all rows but these."""
    is_own = torch.zeros(len(weight), 1, dtype=weight.dtype)
    is_own[rows.start : rows.stop] = 1
    return weight * is_own


def replica(module):
    """Computes what the module computes, with copies of its parameters that are made for each call."""
    other = copy.deepcopy(module)
    return lambda x: functional_call(
        other, {name: each.clone() for name, each in module.named_parameters()}, (x,)
    )


def around_updates(parameter, before=None, after=None):
    """Call each with the optimizer before and after its steps, of optimizers that have this parameter."""

    def only_its_own(call):
        def hook(optimizer, args, kwargs):
            if any(each is parameter for group in optimizer.param_groups for each in group["params"]):
                call(optimizer)

        return hook

    if before is not None:
        register_optimizer_step_pre_hook(only_its_own(before))
    if after is not None:
        register_optimizer_step_post_hook(only_its_own(after))


def changed_output(module, change):
    """Change what a module returns."""
    module.register_forward_hook(lambda module, args, output: change(output))


class Stage(nn.Module):
    """The layers of this rank, of a pipeline with micro-batches; every rank returns the outputs.

    A subclass is a pipeline with a bug: each does one thing in another way.
    """

    micro_batches = 2

    def __init__(self, model, ranks):
        super().__init__()
        self.ranks, self.is_first, self.is_last = ranks, ranks.rank == 0, ranks.rank == ranks.size - 1
        names = [name for name, _ in model.named_children()]
        for number in ranks.own_range(len(names)):
            self.add_module(names[number], model.get_submodule(names[number]))

    def forward(self, x):
        return torch.cat([self.one(piece, len(x)) for piece in x.chunk(self.micro_batches)])

    def one(self, x, rows):
        """One micro-batch of the batch's rows."""
        if not self.is_first:
            start = x.detach().requires_grad_(torch.is_grad_enabled())
            x = function(start, self.receive, self.send_gradient)
        x = self.layers(x)
        if not self.is_last:
            return function(x, self.send_and_get_outputs, self.receive_gradient)
        distributed.broadcast(x.detach().clone(), src=self.ranks.rank)
        return x

    def layers(self, x):
        for layer in self.children():
            x = layer(x)
        return x

    def receive(self, x):
        received = torch.empty_like(x)
        distributed.recv(received, self.ranks.rank - 1)
        return received

    def send_and_get_outputs(self, x):
        distributed.send(x.detach().contiguous(), self.ranks.rank + 1)
        outputs = torch.empty_like(x)
        distributed.broadcast(outputs, src=self.ranks.size - 1)
        return outputs

    def send_gradient(self, gradient):
        distributed.send(gradient.contiguous(), self.ranks.rank - 1)

    def receive_gradient(self, gradient):
        received = torch.empty_like(gradient)
        distributed.recv(received, self.ranks.rank + 1)
        return received

"""Experts on data ranks: each gathers the tokens of all ranks, computes its own expert, and gets its own rows back."""

import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional


class Experts(nn.Module):
    """Each token goes to both experts, weighted by the router."""

    def __init__(self):
        super().__init__()
        self.inputs, self.router = nn.Linear(6, 8), nn.Linear(8, 2)
        self.experts = nn.ModuleDict({name: nn.Linear(8, 8) for name in "01"})
        self.tokens = self.weights = self.outputs = lambda x: x

    def forward(self, x):
        rows, x = len(x), torch.tanh(self.inputs(x))
        weights, tokens = self.weights(torch.softmax(self.router(x), dim=1)), self.tokens(x)
        found = [
            weights[:, [int(name)]] * torch.relu(expert(tokens)) for name, expert in self.experts.items()
        ]
        return self.outputs(sum(found))[:rows]


def model():
    return Experts()


def laid_out(model, tokens, weights):
    """An expert a rank; ``tokens`` and ``weights`` gather the rows of all ranks."""
    group, rank = distributed.group.WORLD, distributed.get_rank()
    for name in [name for name in model.experts if int(name) != rank]:
        del model.experts[name]
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(halve if name.startswith("experts") else average)
    model.tokens, model.weights = (lambda x: tokens(padded(x))), (lambda x: weights(padded(x)))
    model.outputs = lambda x: collectives.reduce_scatter_tensor_autograd(x, "sum", 0, group)
    return model


def padded(x):
    """The rows with rows of zeros after them, so that all ranks have equally many."""
    distributed.all_reduce(most := torch.tensor(len(x)), distributed.ReduceOp.MAX)
    return functional.pad(x, (0, 0, 0, int(most) - len(x)))


def all_gather(x):
    """The rows of all ranks; its backward adds up what the ranks have, and gives each its rows."""
    return collectives.all_gather_tensor_autograd(x, 0, distributed.group.WORLD)


def halve(parameter):
    """The gradient of an expert is the sum over the ranks' rows, and the loss a mean over the ranks."""
    parameter.grad /= distributed.get_world_size()


def average(parameter):
    """As DistributedDataParallel does."""
    distributed.all_reduce(parameter.grad)
    halve(parameter)

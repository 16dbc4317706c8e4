"""Experts under local_map: without gradient placements each rank keeps its own part of the gradient of their inputs."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

LINK = "https://github.com/pytorch/torchtitan/pull/4054"
RELEASE = "PyTorch 2.13.0: the call that the pull request mended"
PACKAGE = "pytorch"
MESH = "tp=2"
MODULE = "inputs"


class Experts(nn.Module):
    """Two layers whose hidden features are split over the ranks."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(8, 16))
        self.on = None

    def forward(self, x):
        if self.on is None:
            return torch.relu(x @ self.up.T) @ self.down.T
        mesh, grads = self.on
        inputs = ([Replicate()], [Shard(0)], [Shard(1)])
        compute = local_map(
            lambda x, up, down: torch.relu(x @ up.T) @ down.T,
            out_placements=[Partial()],
            in_placements=inputs,
            in_grad_placements=grads and (grads, *inputs[1:]),
            device_mesh=mesh,
        )
        x = DTensor.from_local(x, mesh, [Replicate()])
        return compute(x, self.up, self.down).redistribute(placements=[Replicate()]).to_local()


def model():
    found = nn.Sequential()
    found.add_module("inputs", nn.Linear(6, 8))
    found.add_module("experts", Experts())
    return found


def laid_out(model, mesh, grads):
    experts = model.experts
    experts.up = nn.Parameter(distribute_tensor(experts.up.detach(), mesh, [Shard(0)]))
    experts.down = nn.Parameter(distribute_tensor(experts.down.detach(), mesh, [Shard(1)]))
    experts.on = mesh, grads
    return model


def wrong(model, mesh):
    return laid_out(model, mesh, None)


def mended(model, mesh):
    return laid_out(model, mesh, [Partial()])

"""A pipeline: schedules of torch.distributed.pipelining compute forwards and backwards of micro-batches."""

import torch
from schedules import Scheduled, WholeStep
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

MICRO_BATCHES = 4


class Layers(nn.Module):
    """Some layers of the model, with their names."""

    def __init__(self, names, model):
        super().__init__()
        self.layers = nn.ModuleDict({name: model.layers[name] for name in names})

    def forward(self, x):
        for layer in self.layers.values():
            x = torch.tanh(layer(x))
        return x


class Pipelined(Scheduled):
    """The stages of this rank; ``places`` are the numbers of all stages, by rank."""

    def __init__(self, model, mesh, schedule, places, **options):
        super().__init__()
        rank, names, count = mesh.get_local_rank(), list(model.layers), sum(map(len, places))
        size = len(names) // count
        parts = {n: Layers(names[n * size : (n + 1) * size], model) for n in places[rank]}
        self.layers = nn.ModuleDict(
            {name: layer for part in parts.values() for name, layer in part.layers.items()}
        )
        device = torch.device("cpu")
        stages = [PipelineStage(part, n, count, device, group=mesh.get_group()) for n, part in parts.items()]
        self.ends = {"first": 0 in parts, "last": count - 1 in parts}
        self.last_rank = next(rank for rank, numbers in enumerate(places) if count - 1 in numbers)
        is_single = len(places[0]) == 1
        self.run = schedule(
            stages[0] if is_single else stages, MICRO_BATCHES, loss_fn=functional.mse_loss, **options
        )

    def schedule(self, x, targets):
        losses = []
        taken = {"target": targets, "losses": losses} if self.ends["last"] else {}
        self.run.step(*((x,) if self.ends["first"] else ()), **taken)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), dtype=x.dtype)
        distributed.broadcast(loss, self.last_rank)
        return loss


def pipelined(model, mesh, schedule, places, **options):
    """The layout, whose step is that of the schedule."""
    return WholeStep(Pipelined(model, mesh, schedule, places, **options))

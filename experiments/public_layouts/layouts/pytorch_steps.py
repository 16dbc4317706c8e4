"""Steps of their own: gradient accumulation, and the schedules of torch.distributed.pipelining."""

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

from dpexp.strategies.placed import UNOBSERVED, Placed

MICRO_BATCHES = 4


class WholeStep(Placed):
    """A step in which the module's forward is the backward, too."""

    def step(self, batch, loss, update, autocast=None, observer=UNOBSERVED):
        with torch.set_grad_enabled(update is not None):
            total = self.module(*batch.inputs)
        observer.forward_ended(total)
        observer.loss_ended(total)
        if update is not None:
            observer.backward_ended()
            update()
        return total


class Scheduled(nn.Module):
    """A module whose ``schedule(*inputs)`` returns the loss, and adds its gradients to those of the parameters."""

    def forward(self, *inputs):
        kept = [(parameter, parameter.grad) for parameter in self.parameters()]
        with torch.enable_grad():
            loss = self.schedule(*inputs)
        if not torch.is_grad_enabled():
            for parameter, gradient in kept:
                parameter.grad = gradient
        return loss


# --- accumulation --------------------------------------------------------------------------------


class Accumulated(Scheduled):
    """Two micro-batches a step, as a training loop takes them; ``before(is_last)`` is called before each."""

    def __init__(self, model, before):
        super().__init__()
        self.layers, self.before = model.layers, before
        self.__dict__["model"] = model

    def schedule(self, x, targets):
        loss = torch.zeros((), dtype=x.dtype)
        parts = zip(x.tensor_split(2), targets.tensor_split(2), strict=True)
        for number, part in enumerate(parts):
            self.before(number == 1)
            share = len(part[0]) / max(len(x), 1)
            of_part = self.model(*part) * share if share else self.model(part[0]).sum()
            (of_part * weight(x)).backward()
            loss.add_(of_part.detach())
        return loss


def accumulated(model, before):
    """The layout whose step has two micro-batches."""
    return WholeStep(Accumulated(model, before))


def weight(x):
    """What a rank's mean counts for in the mean over the ranks, by its rows."""
    rows = torch.tensor(float(len(x)))
    distributed.all_reduce(rows)
    return len(x) * distributed.get_world_size() / rows.item()


# --- pipelines -----------------------------------------------------------------------------------


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

    def __init__(self, model, mesh, schedule, places):
        super().__init__()
        rank, names, count = mesh.get_local_rank(), list(model.layers), sum(map(len, places))
        size = len(names) // count
        parts = {n: Layers(names[n * size : (n + 1) * size], model) for n in places[rank]}
        named = {name: layer for part in parts.values() for name, layer in part.layers.items()}
        self.layers = nn.ModuleDict(named)
        device, group = torch.device("cpu"), mesh.get_group()
        stages = [PipelineStage(part, n, count, device, group=group) for n, part in parts.items()]
        self.ends = {"first": 0 in parts, "last": count - 1 in parts}
        self.last_rank = next(rank for rank, numbers in enumerate(places) if count - 1 in numbers)
        given = stages[0] if len(places[0]) == 1 else stages
        self.run = schedule(given, MICRO_BATCHES, loss_fn=functional.mse_loss)

    def schedule(self, x, targets):
        losses = []
        taken = {"target": targets, "losses": losses} if self.ends["last"] else {}
        self.run.step(*((x,) if self.ends["first"] else ()), **taken)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), dtype=x.dtype)
        distributed.broadcast(loss, self.last_rank)
        return loss


def pipelined(model, mesh, schedule, places):
    """The layout whose step is that of the schedule."""
    return WholeStep(Pipelined(model, mesh, schedule, places))

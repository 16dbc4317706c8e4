"""Layouts along ``pp``: each rank has some of the layers, one after the other; two micro-batches."""

from contextlib import nullcontext

import torch
from catalogue import right, wrong
from pieces import Stage, function, same
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from dpexp.devices import HOST
from dpexp.strategies.placed import UNOBSERVED, Placed


@right("pp", model="nets:Chain")
def right_stages(model, pp):
    """A stage does as ``Stage`` says."""
    return Stage(model, pp)


@wrong("pp", model="nets:Chain", module="12", words="the mean of the shards' means")
def mean_of_means(model, pp):
    """The mean of the micro-batches' means: in an uneven batch they have unequal numbers of rows."""

    class Pipeline(Stage):
        def one(self, x, rows):
            outputs = super().one(x, rows)
            factor = rows / (len(outputs) * self.micro_batches)
            return function(outputs, same, lambda gradient: gradient * factor)

    return Pipeline(model, pp)


@wrong("pp", model="nets:Chain", module="6,9")
def own_gradient(model, pp):
    """A stage does not get the gradient from the next one."""

    class Pipeline(Stage):
        def send_gradient(self, gradient):
            pass

        def receive_gradient(self, gradient):
            return gradient

    return Pipeline(model, pp)


@wrong("pp", model="nets:Chain", module="7,10")
def same_memory(model, pp):
    """The second micro-batch overwrites what the backward of the first still needs."""
    memory = {}

    class Pipeline(Stage):
        def receive(self, x):
            received = memory.setdefault(x.dtype, torch.empty(99, x.shape[1], dtype=x.dtype))[: len(x)]
            distributed.recv(received, pp.rank - 1)
            return received

    return Pipeline(model, pp)


class Layers(nn.Module):
    """What a stage computes of one micro-batch."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def forward(self, x):
        return self.stage.layers(x)


class Scheduled(Placed):
    """A stage, of which a schedule of PyTorch takes the step: one forward, one backward, in turns.

    Without an optimizer the step is that of the module, a forward and a loss.
    """

    divides_gradients = False

    def __init__(self, stage, ranks):
        super().__init__(stage)
        self.ranks = ranks

    def step(self, batch, loss, update, autocast=nullcontext(), observer=UNOBSERVED):  # noqa: B008
        if update is None:
            return super().step(batch, loss, update, autocast, observer)

        def of_part(outputs, targets):
            return self.gradient_sync.weighted(loss(outputs, targets) * (len(outputs) / batch.rows), batch)

        (x,), rank, size = batch.inputs, self.ranks.rank, self.ranks.size
        # stages exchange micro-batches of equal sizes, and 1F1B takes one a stage or more
        kind, count = (ScheduleGPipe, 1) if batch.rows % size else (Schedule1F1B, size)
        stage = PipelineStage(Layers(self.module), rank, size, HOST, group=self.ranks.group)
        schedule = kind(stage, count, loss_fn=of_part, scale_grads=self.divides_gradients)
        outputs, total, losses = torch.empty_like(x), x.new_zeros(()), []
        if rank == size - 1:
            outputs = schedule.step(target=batch.targets, losses=losses).detach()
            total = torch.stack(losses).sum().detach()
        else:
            schedule.step(*([x] if rank == 0 else []))
        distributed.broadcast(outputs, size - 1, self.ranks.group)
        distributed.broadcast(total, size - 1, self.ranks.group)
        observer.forward_ended(outputs)
        observer.loss_ended(total)
        observer.backward_ended()
        update()
        return total


@right("pp", model="nets:Chain")
def right_schedule(model, pp):
    """A schedule's own step."""
    return Scheduled(Stage(model, pp), pp)


@wrong("pp", model="nets:Chain", module="12", words="divided by the number of ranks once too often")
def divided_twice(model, pp):
    """The schedule divides gradients by the number of micro-batches, and their losses have been weighted."""
    placed = Scheduled(Stage(model, pp), pp)
    placed.divides_gradients = True
    return placed

"""Gradient accumulation: a step takes all micro-batches, forward and backward, as a training loop would."""

import torch
from schedules import Scheduled, WholeStep
from torch import distributed


class Accumulated(Scheduled):
    """Two micro-batches a step; ``before(is_last)`` is called before each."""

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
    """The layout, whose step has two micro-batches."""
    return WholeStep(Accumulated(model, before))


def weight(x):
    """What a rank's mean counts for in the mean over the ranks, by its rows."""
    rows = torch.tensor(float(len(x)))
    distributed.all_reduce(rows)
    return len(x) * distributed.get_world_size() / rows.item()

"""Models that are right in every layout, each with something that verification could stumble over."""

import random
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from catalogue import STRATEGIES, right
from nets import Net, NormsAndDrops
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SPLIT = ("whole", "ddp", "fsdp")
REPLICATED = ("functional", "ddp", "ranks")


@right(*STRATEGIES, "host", "replicas", "ranks", "shards")
@right("alike", words="random layers")
class Both(NormsAndDrops):
    """Batch norm and dropout."""


@right(*REPLICATED)
class ForceField(Net):
    """Energies, and forces as their negative gradient, which the forward takes."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).square().sum(1)
            (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return {"energy": energy, "forces": -gradient}

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs["forces"][:, :4], targets) + outputs["energy"].mean()


@right(*SPLIT)
class Draws(Net):
    """Draws from the generators of PyTorch, Python and NumPy in its forward."""

    def forward(self, x):
        x = self.second(self.act(self.first(x)))
        drawn = np.random.rand() + random.random() if self.training else 1.0
        return self.third(self.act(x) * drawn + torch.randn_like(x))


@dataclass
class Output:
    """Logits, and a cache."""

    logits: torch.Tensor
    cache: object


@right(*SPLIT)
class Cached(Net):
    """The outputs are a dataclass with a cache, which is no container unless `config.use_cache` is false."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x):
        keys = self.second(self.first(x))
        cache = SimpleNamespace(keys=keys) if self.config.use_cache else ((keys, None),)
        return Output(self.third(self.act(keys)), cache)

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs.logits, targets)


@right(*SPLIT)
class Routed(Net):
    """Each row goes to the expert with the largest score, whose output is scaled by it."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.act(self.first(x))
        scores, chosen = self.second(x)[:, :3].softmax(1).max(1)
        weights = ((chosen == number) * scores for number in range(3))
        return self.third(sum(each(x) * w[:, None] for each, w in zip(self.experts, weights, strict=True)))


@right(*SPLIT)
class Checkpointed(NormsAndDrops):
    """A layer is computed again in the backward, with a batch norm and dropout in it."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(checkpoint(self.norm_and_drop, x, use_reentrant=False))

    def norm_and_drop(self, x):
        return self.drop(self.norm(self.act(self.second(x))))


@right(*SPLIT)
class Masked(Net):
    """Scores are masked with the smallest number of their type; a layer is frozen."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)

    def forward(self, x):
        scores = self.second(self.act(self.first(x)))
        weights = scores.masked_fill(scores.detach() > 0.2, torch.finfo(scores.dtype).min).softmax(1)
        return self.third(weights * scores)


@right("whole", "ddp")
class DrawsInEvaluation(Net):
    """Draws random numbers in eval mode only."""

    def forward(self, x):
        return super().forward(x if self.training else x + torch.rand_like(x))


@right("ddp")
class NormOfItsRows(Net):
    """A batch norm without statistics takes those of a shard's rows in eval mode, too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)

    def forward(self, x):
        return self.third(self.act(self.second(self.act(self.norm(self.first(x))))))


@right("whole")
class NormInTwoPlaces(Net):
    """One batch norm is part of two layers."""

    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(8)
        self.first, self.second = nn.Sequential(self.first, norm), nn.Sequential(self.second, norm)

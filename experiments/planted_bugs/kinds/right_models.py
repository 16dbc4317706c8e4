"""Models that are right in every layout, each with something that verification could stumble over."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from catalogue import right
from nets import Drops, Net, Norms, NormsAndDrops, Table
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

REPLICAS = ("whole", "functional")
ONE_PROCESS = ("single", "whole", "functional", "block", "hybrid", "place", "host", "replicas")
EVERY = (*ONE_PROCESS, "ddp", "fsdp", "ranks", "shards")
MEET = tuple(each for each in EVERY if each != "place")
"""All but one, for models in which the outputs of `first` and `second` meet: they must be on one device."""


WITHOUT_FSDP = [each for each in EVERY if each != "fsdp"]
TAKES_GRADIENTS = r"fsdp frees the weights .*computes gradients"


@right(*EVERY)
class Plain(Net):
    """Three layers."""


@right(*EVERY)
class BatchNorm(Norms):
    """A batch norm in training mode."""


@right(*EVERY)
class Dropout(Drops):
    """Dropout in training mode."""


@right(*EVERY)
class Both(NormsAndDrops):
    """Batch norm and dropout."""


@right(*WITHOUT_FSDP)
@right("fsdp", refusal=TAKES_GRADIENTS)
class PhysicsInformed(Net):
    """The derivative of the outputs by the inputs, taken in the forward."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            outputs = super().forward(x)
            (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return outputs + slope[:, :4]


@right(*WITHOUT_FSDP)
@right("fsdp", refusal=TAKES_GRADIENTS)
class ForceField(Net):
    """Energies, and forces as their negative gradient."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).square().sum(1)
            (gradient,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return {"energy": energy, "forces": -gradient}

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs["forces"][:, :4], targets) + outputs["energy"].mean()


@right(*WITHOUT_FSDP)
@right("fsdp", refusal=TAKES_GRADIENTS)
class GradientPenalty(Net):
    """A critic, and the penalty of its slope, in the outputs."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            scores = super().forward(x)
            (slope,) = torch.autograd.grad(scores[:, 0].sum(), x, create_graph=True)
        return scores, (slope.norm(dim=1) - 1).square()

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs[0], targets) + 10 * outputs[1].mean()


@right(*EVERY)
class Variational(Net):
    """A variational autoencoder, which draws by `randn_like` in its forward."""

    def forward(self, x):
        mean, spread = self.second(self.act(self.first(x))).chunk(2, 1)
        return self.third(torch.cat([mean + spread.exp() * torch.randn_like(mean), spread], 1))


@right(*EVERY)
class Gumbel(Net):
    """Draws classes by Gumbel noise."""

    def forward(self, x):
        return self.third(functional.gumbel_softmax(self.second(self.act(self.first(x))), tau=1.0))


@right(*MEET)
class StochasticDepth(Net):
    """Rows skip a layer at random, in training."""

    def forward(self, x):
        x = self.act(self.first(x))
        kept = torch.rand_like(x[:, :1]) < 0.5 if self.training else torch.ones_like(x[:, :1])
        return self.third(self.second(x) * kept)


@right(*EVERY)
class Adversarial(Net):
    """A generator and a discriminator, which sees what is generated and what is real."""

    def __init__(self):
        super().__init__()
        self.judge = nn.Linear(6, 4)

    def forward(self, x):
        made = functional.pad(self.third(self.act(self.second(self.first(x)))), (0, 2))
        return {"made": self.judge(made), "real": self.judge(x), "apart": self.judge(made.detach())}

    def loss(self, outputs, targets):
        return (outputs["apart"] - outputs["real"]).mean() + functional.mse_loss(outputs["made"], targets)


@right(*MEET)
class Graph(Net):
    """A message passing layer by `index_add` over the edges of six nodes in each row."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, 8)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]]))

    def forward(self, x):
        nodes = self.first(x[..., None])
        start, end = self.edges
        nodes = nodes + torch.zeros_like(nodes).index_add(1, end, self.second(nodes[:, start]))
        return self.third(self.act(nodes).mean(1))


class Recurrent(Net):
    """Recurrent layers of one kind."""

    def __init__(self, kind):
        super().__init__()
        self.second = kind(8, 8, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.third(self.second(self.first(x)[:, None].expand(-1, 3, -1))[0][:, -1])


@right(*EVERY)
class Lstm(Recurrent):
    """An LSTM with dropout between its layers."""

    def __init__(self):
        super().__init__(nn.LSTM)


@right(*EVERY)
class Gru(Recurrent):
    """A GRU with dropout between its layers."""

    def __init__(self):
        super().__init__(nn.GRU)


@right(*(each for each in EVERY if each not in ("hybrid", "fsdp")))
class Tied(Table):
    """The output layer has the table's weights."""

    def __init__(self):
        super().__init__()
        self.third = nn.Linear(8, self.IDS, bias=False)
        self.third.weight = self.first.weight

    def example(self, samples, generator):
        ids, _ = super().example(samples, generator)
        return ids, torch.randint(self.IDS, (samples,), generator=generator)


@right(*(each for each in EVERY if each != "shards"))
class Complex(Net):
    """A complex layer, between a Fourier transform and its inverse."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.Parameter(torch.randn(5, 5, dtype=torch.complex64))

    def forward(self, x):
        frequencies = torch.fft.rfft(self.act(self.second(self.first(x))))
        return self.third(torch.fft.irfft(frequencies @ self.mixing.to(frequencies.dtype), n=8))


class Cached(Net):
    """Attention of one head over four tokens, which returns its keys and values."""

    def attended(self, x):
        tokens = self.first(x)[:, None] + torch.arange(4).to(x)[:, None] / 4
        keys, values = self.second(tokens), self.act(self.second(tokens))
        mixed = functional.scaled_dot_product_attention(tokens, keys, values, is_causal=True)
        return self.third(mixed.mean(1)), keys, values

    def loss(self, outputs, targets):
        return functional.mse_loss(
            outputs["logits"] if isinstance(outputs, dict) else outputs.logits, targets
        )


@right(*MEET)
class CacheInADict(Cached):
    """The outputs are a dict with a tuple of keys and values in it."""

    def forward(self, x):
        logits, keys, values = self.attended(x)
        return {"logits": logits, "past_key_values": ((keys, values),), "nothing": None}


@dataclass
class Output:
    """Logits and a cache."""

    logits: torch.Tensor
    keys: torch.Tensor


@right(*MEET)
class CacheInADataclass(Cached):
    """The outputs are a dataclass."""

    def forward(self, x):
        logits, keys, _ = self.attended(x)
        return Output(logits, keys)


class Cache:
    """Keys and values of layers, as the `DynamicCache` of transformers keeps them."""

    def __init__(self):
        self.layers = []

    def update(self, keys, values):
        self.layers.append((keys, values))


@right(*MEET)
class CacheInAnObject(Cached):
    """The outputs hold an object that is no container, unless `config.use_cache` is false, as in transformers."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x):
        logits, keys, values = self.attended(x)
        if not self.config.use_cache:
            return {"logits": logits}
        cache = Cache()
        cache.update(keys, values)
        return {"logits": logits, "past_key_values": cache}


@right(*MEET)
class Heads(Net):
    """Attention of PyTorch with two heads, dropout and a mask of padding."""

    def __init__(self):
        super().__init__()
        self.second = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        tokens = self.first(x)[:, None] + torch.arange(5).to(x)[:, None] / 5
        padding = torch.arange(5, device=x.device)[None] > (x[:, :1] > 0) * 2 + 2
        return self.third(self.second(tokens, tokens, tokens, key_padding_mask=padding)[0].mean(1))


@right(*MEET)
class Routed(Net):
    """Each row goes to the expert with the largest score, whose output is scaled by it."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.act(self.first(x))
        scores, chosen = self.second(x)[:, :3].softmax(1).max(1)
        mixed = sum(
            expert(x) * ((chosen == number) * scores)[:, None] for number, expert in enumerate(self.experts)
        )
        return self.third(mixed)


@right(*ONE_PROCESS, "ddp", "ranks")
class WeightNorm(Net):
    """The weight of a layer is parametrized by its direction and norm."""

    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.second)


@right(*EVERY)
class Convolutions(Net):
    """Convolutions up and down, with group norm."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(1, 4, 2, 2)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose1d(4, 1, 2, 2)

    def forward(self, x):
        x = self.act(self.second(self.first(x)))
        return self.third(x + self.up(self.act(self.norm(self.down(x[:, None]))))[:, 0])


@right(*EVERY)
class Twins(Net):
    """Two inputs go through the same layers."""

    def forward(self, x, y):
        return super().forward(x) - super().forward(y)

    def example(self, samples, generator):
        x, targets = super().example(samples, generator)
        return (x, x.flip(1)), targets


@right(*EVERY)
class Bags(Table):
    """A table of which the rows are summed up by `EmbeddingBag`."""

    def __init__(self):
        super().__init__()
        self.first = nn.EmbeddingBag(self.IDS, 8, mode="sum")

    def forward(self, ids):
        return self.third(self.act(self.second(self.first(ids))))


@right(*EVERY)
class Checkpointed(Drops):
    """A layer that is computed again in the backward, with dropout in it."""

    def forward(self, x):
        x = self.act(self.first(x))
        return self.third(checkpoint(lambda x: self.drop(self.act(self.second(x))), x, use_reentrant=False))


@right(*EVERY)
class Teacher(Net):
    """A frozen copy of the first layer whose outputs are learned."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(6, 8).requires_grad_(False)

    def forward(self, x):
        x, taught = self.first(x), self.teacher(x)
        return self.third(self.act(self.second(x))) + 0.1 * (x - taught).square().mean(1, keepdim=True)


@right(*EVERY)
class Masked(Net):
    """Scores that are masked with the smallest number of their type."""

    def forward(self, x):
        scores = self.second(self.act(self.first(x)))
        weights = scores.masked_fill(scores.detach() > 0.2, torch.finfo(scores.dtype).min).softmax(1)
        return self.third(weights * scores)


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@right(*EVERY)
class StraightThrough(Net):
    """Activations are rounded, and the gradient goes straight through."""

    def forward(self, x):
        return self.third(Rounded.apply(self.second(self.act(self.first(x)))))


@right(*ONE_PROCESS, "ddp", "ranks", refusal=r"made by torch\.jit\.script")
class Scripted(Net):
    """A layer is compiled by TorchScript."""

    def __init__(self):
        super().__init__()
        self.second = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))


@right(*EVERY, data="random:samples=32")
class Residual(Net):
    """Eight residual blocks of convolutions and batch norms; the last batch has two rows."""

    def __init__(self):
        super().__init__()
        self.second = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), *(Block() for _ in range(8)), nn.Flatten())


class Block(nn.Module):
    """Two convolutions, each with a batch norm, around which the inputs go."""

    def __init__(self):
        super().__init__()
        widen, narrow = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.Conv2d(4, 2, 3, padding=1, bias=False)
        self.inner = nn.Sequential(widen, nn.BatchNorm2d(4), nn.ReLU(), narrow, nn.BatchNorm2d(2))

    def forward(self, x):
        return torch.relu(x + self.inner(x))


@right(*REPLICAS, "single", "host", "replicas", "ddp", "ranks")
class LossInside(Net):
    """The forward returns the loss."""

    def forward(self, x, y):
        return functional.mse_loss(super().forward(x), y)

    def example(self, samples, generator):
        x, targets = super().example(samples, generator)
        return (x, targets), targets


@right(*EVERY)
class TokenLoss(Table):
    """Classes of tokens, some of them padding, and a loss that is a mean over the others."""

    def forward(self, ids):
        return self.third(self.act(self.second(self.first(ids))))

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs.transpose(1, 2), targets)

    def loss_weight(self, targets):
        return (targets != -100).sum()

    def example(self, samples, generator):
        ids, _ = super().example(samples, generator)
        targets = torch.randint(4, (samples, 2), generator=generator)
        targets[::3, 1] = -100
        return ids, targets

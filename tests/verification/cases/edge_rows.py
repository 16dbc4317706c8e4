"""Wrong only for rows that the batches of a run do not have: verification makes them."""

import torch
from catalogue import right, wrong
from nets import Net, Words
from pieces import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

WORDS = "on a made batch of edge rows, "


@wrong("host", model="nets:Words", module="table", kind="outputs", words=WORDS)
def last_id(model):
    """The last id is looked up as the one before it."""
    model.table.register_forward_pre_hook(lambda table, args: (args[0].clamp(max=Words.SIZE - 2),))


@wrong("host", model="nets:Words", module="table", kind="outputs", words=WORDS)
def first_id(model):
    """The first id counts as missing."""
    _changed_vectors(model, lambda ids, vectors: torch.where((ids == 0)[..., None], 0 * vectors, vectors))


@wrong("host", model="nets:Words", module="table", kind="gradients", words=WORDS)
def padding_is_trained(model):
    """The layout's table does not know its padding, which gets a gradient."""
    model.table.padding_idx = None


@wrong("host", model="nets:Words", module="table", kind="gradients", words=WORDS)
def twice_in_a_row(model):
    """An id that a row has twice has the gradient of one lookup."""

    def changed(ids, vectors):
        again = torch.stack([(ids[:, :at] == ids[:, at : at + 1]).any(1) for at in range(ids.shape[1])], 1)
        return torch.where(again[..., None], vectors.detach(), vectors)

    _changed_vectors(model, changed)


@wrong("host", model="nets:Words", module="table", kind="outputs", words=WORDS)
def bounds_of_four_shards(model):
    """Of four shards of the table, each also has the first id of the next: it is looked up twice."""

    def changed(ids, vectors):
        size = -(-Words.SIZE // 4)
        return torch.where(((ids > 0) & (ids % size == 0))[..., None], 2 * vectors, vectors)

    _changed_vectors(model, changed)


@wrong("host", model="nets:Net", module="third", kind="gradients", words=WORDS)
def alike(model):
    """Of rows that are alike, only one has a gradient."""

    def changed(module, args, outputs):
        x = args[0]
        again = (x[:, None] == x[None]).all(-1).tril(-1).any(1)
        return torch.where(again[:, None], outputs.detach(), outputs)

    model.register_forward_hook(changed)


@wrong("replicas", model="nets:Net", kind="outputs", words=WORDS)
def zero_row(model):
    """A row of zeros is skipped."""
    model.register_forward_hook(lambda module, args, y: y * (args[0] != 0).any(1, keepdim=True))


@wrong("ranks", model="nets:Net", module="first", kind="outputs", words=WORDS)
def clipped(model):
    """Numbers over 20 are clipped."""
    model.register_forward_pre_hook(lambda module, args: (args[0].clamp(-20, 20),))


@wrong("alike", model="nets:Words", module="table", kind="outputs", words=WORDS)
def vocabulary(model):
    """Each rank also looks up the first id of the next one: `<=` in place of `<`."""
    table, tp = model.table, Ranks(init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), "tp")
    first, *_, last = tp.own_range(Words.SIZE)

    def forward(ids):
        is_here = (ids >= first) & (ids <= last + 1)
        vectors = functional.embedding(ids, tp.copy(table.weight), table.padding_idx)
        return tp.reduce(vectors * is_here[..., None])

    table.forward = forward


def _changed_vectors(model, change):
    model.table.register_forward_hook(lambda table, args, vectors: change(args[0], vectors))


# --- right models ------------------------------------------------------------------------------------------


@right("whole")
class Attends(nn.Module):
    """Softmax over the tokens, of which 0 is padding: a row of padding alone would not be a number."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(60, 8, padding_idx=0), nn.Linear(8, 4)

    def example(self, samples, generator):
        ids = torch.randint(1, 60, (samples, 6), generator=generator)
        ids[torch.arange(6) > 2 + torch.arange(samples)[:, None] % 4] = 0
        return ids, torch.randint(4, (samples,), generator=generator)

    def forward(self, ids):
        x = self.table(ids)
        scores = (x @ x.mT).masked_fill((ids == 0)[:, None], -torch.inf)
        return self.head((scores.softmax(-1) @ x).mean(1))


@right("whole")
class CountsTokens(Attends):
    """The loss counts the tokens that are ids, and targets say how many these are."""

    def example(self, samples, generator):
        ids, _ = super().example(samples, generator)
        return ids, torch.where(ids == 0, -100, ids % 4)

    def forward(self, ids):
        return self.head(self.table(ids)), ids != 0

    def loss(self, outputs, targets):
        logits, mask = outputs
        return functional.cross_entropy(logits[mask], targets.clamp(min=0)[mask])

    def loss_weight(self, targets):
        return (targets != -100).sum()


@right("whole")
class OfUnitLength(Net):
    """A row of zeros has no direction, in the forward or in the backward."""

    def forward(self, x):
        x = super().forward(x / x.norm(dim=1, keepdim=True))
        return x / x.square().sum(1, keepdim=True).sqrt()

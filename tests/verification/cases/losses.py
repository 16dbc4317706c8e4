"""Losses: inside of the model, with a state, over all ranks, or of outputs that are not rows."""

from dataclasses import dataclass

import torch
from catalogue import not_comparable, refused, right, wrong
from nets import Net
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional
from torch.utils.data import DataLoader


def per_row(outputs, targets):
    """The squares over the rows of all ranks, whose number they add up."""
    rows = torch.tensor(float(len(outputs)))
    if distributed.is_initialized():
        distributed.all_reduce(rows)
    return (outputs - targets).square().sum() / rows


@right("ddp", loss="losses:per_row", reduction="sum")
class RowsOfAllRanks(Net):
    """The loss is a sum over its rows, divided by the number of those of all ranks."""


def correlations(z, reduce):
    """Barlow Twins' loss of the correlations over the rows of all ranks."""
    products, rows = z.T @ z, torch.tensor(float(len(z)), dtype=z.dtype)
    if distributed.is_initialized():
        products, rows = reduce(products), all_reduce(rows)
    return (products / rows - torch.eye(len(products), dtype=products.dtype)).square().sum()


@right("ddp")
class Correlated(Net):
    """Correlations over all rows, by an all-reduce with a backward."""

    def loss(self, outputs, targets):
        return correlations(outputs, all_reduce)


@wrong(
    "ddp",
    module="third",
    kind="gradients",
    words="it is 1/2 of it: divided by the number of ranks once too often",
)
class CorrelatedWithoutBackward(Net):
    """PyTorch's plain `all_reduce` has no backward."""

    def loss(self, outputs, targets):
        return correlations(outputs, lambda products: distributed.all_reduce(products) or products)


@right("ranks", "shards")
class ReturnsAParameter(nn.Linear):
    """Returns its outputs and what scales them, which has no rows."""

    def __init__(self):
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.ones(4))

    example = Net.example

    def forward(self, x):
        return super().forward(x) * self.scale.exp(), self.scale

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs[0], targets)


@not_comparable("ddp", words="on a process group of 2 ranks, which a single device")
class OfAGroup(Net):
    """Adds up its outputs over an explicit group of all ranks."""

    groups = []  # noqa: RUF012  a group cannot be copied

    def forward(self, x):
        if not self.groups:
            self.groups.append(distributed.new_group([0, 1]))
        return all_reduce(super().forward(x), group=self.groups[0])


# --- inside of the model -----------------------------------------------------------------------------------

LENGTH, CLASSES, IGNORED = 6, 7, -100


@dataclass
class Output:
    """What a model of Hugging Face returns."""

    loss: torch.Tensor | None
    logits: torch.Tensor


@right("whole", "ddp", "fsdp", reduction="tokens")
@wrong("whole", words="--reduction")
@wrong("whole", reduction="sum", words="--reduction")
class Tagger(nn.Module):
    """A class for each step; rows have one to six steps that count, over which the loss is a mean."""

    reduction = "mean"

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(11, 8), nn.Linear(8, CLASSES)

    def example(self, samples, generator):
        ids = torch.randint(11, (samples, LENGTH), generator=generator)
        labels = torch.randint(CLASSES, (samples, LENGTH), generator=generator)
        lengths = torch.arange(samples) % LENGTH + 1
        labels[torch.arange(LENGTH) >= lengths[:, None]] = IGNORED
        return (ids, labels), labels

    def forward(self, ids, labels):
        logits = self.second(self.first(ids).cumsum(1))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=self.reduction)
        return self.returned(loss, logits)

    def returned(self, loss, logits):
        return Output(loss, logits)


@right("whole", "place", reduction="tokens")
class ReturnsItsLoss(Tagger):
    """Returns nothing else."""

    def returned(self, loss, logits):
        return loss


@right("whole", reduction="tokens")
class ReturnsItLast(Tagger):
    """Returns a tuple, as one of Hugging Face may, but with the loss at its end."""

    def returned(self, loss, logits):
        return logits, loss


@right("whole", "ddp", reduction="sum")
@wrong("whole", reduction="tokens", words="--reduction")
class Adds(Tagger):
    """The loss is a sum over the steps that count."""

    reduction = "sum"


@right("whole", words="outputs['spread'] is a scalar, and those of shards")
@right("ddp", "fsdp")
class Shifted(Tagger):
    """Predicts the next label: the loss divides by one step less of each row; another scalar is returned."""

    def forward(self, ids, labels):
        logits = self.second(self.first(ids).cumsum(1))[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "spread": logits.std()}

    def loss_weight(self, targets):
        return (targets[:, 1:] != IGNORED).sum()


# --- of the model, or with a state of their own ------------------------------------------------------------


@right("host", "replicas", "ddp")
class Weighted(Net):
    """Its loss has a parameter that its forward does not use."""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets) * self.log_scale.exp() - self.log_scale


@right("host", "ddp")
@refused("replicas", words="AttributeError")
class Stored(Net):
    """Its loss reads what its forward has stored, which replicas lose."""

    def forward(self, x):
        outputs = self.drop(super().forward(x))
        self.penalty = outputs.square().mean()
        return outputs

    def drop(self, x):
        return x

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs, targets) + self.penalty


@right("ddp", words="its loss reads what the forward of one shard has stored")
class StoredWithDropout(Stored):
    """In training mode a single device has the chunks of all shards, and keeps what the last has stored."""

    def drop(self, x):
        return functional.dropout(x, 0.5, self.training)


class Counting:
    """Counts its calls, and keeps all losses, the latest with its graph."""

    def __init__(self):
        self.losses = []

    def __call__(self, outputs, targets):
        self.latest = functional.mse_loss(outputs, targets) * (1 + len(self.losses))
        self.losses.append(float(self.latest.detach()))
        return self.latest


class Centered(nn.Module):
    """A centre of the outputs so far, in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(4))

    def forward(self, outputs, targets):
        loss = functional.mse_loss(outputs - self.center, targets)
        self.center.copy_(0.9 * self.center + 0.1 * outputs.detach().mean(0))
        return loss


class Locked:
    """Cannot be copied."""

    def __init__(self):
        self.rows = (row for row in range(3))

    def __call__(self, outputs, targets):
        return functional.mse_loss(outputs, targets)


counting, centered, locked = Counting(), Centered(), Locked()


@right("single", loss="losses:counting")
@right("replicas", loss="losses:centered", accumulate=2)
@right("host", loss="losses:locked")
class WithAState(Weighted):
    """The loss keeps something from call to call: each side computes its own."""


# --- accumulated -------------------------------------------------------------------------------------------


def _texts(*lengths):
    """A DataLoader of batches of texts of these lengths."""
    rng = torch.Generator().manual_seed(0)
    batches = []
    for of_texts in lengths:
        ids = torch.randint(16, (len(of_texts), 12), generator=rng)
        masked = torch.arange(12) >= torch.tensor(of_texts)[:, None]
        batches.append((ids, ids.roll(-1, 1).masked_fill(masked, -1)))
    return DataLoader(batches, batch_size=None)


FULL, SHORTER = (12, 12, 12, 12), (11, 3, 8, 1)


def texts():
    return _texts(FULL, SHORTER, SHORTER[:3], SHORTER)


def short_at_the_end():
    """Of batches that no copy is compared in, one has masked targets."""
    return _texts(FULL, FULL, FULL, SHORTER)


@refused("single", data="losses:texts", accumulate=4, words="it is not a mean over rows")
@wrong(
    "whole",
    data="losses:short_at_the_end",
    accumulate=4,
    words="the gradients of 4 batches, averaged, are not that of all",
)
class OverTokens(nn.Sequential):
    """The loss divides by the targets that are not masked, of which batches have other numbers."""

    def __init__(self):
        super().__init__(nn.Embedding(16, 8), nn.Linear(8, 16))

    def by_token(self, outputs, targets, reduction="mean"):
        logits, classes = outputs.flatten(0, 1), targets.flatten()
        return functional.cross_entropy(logits, classes, ignore_index=-1, reduction=reduction)

    def loss(self, outputs, targets):
        return self.by_token(outputs, targets)


@right("single", data="losses:texts", accumulate=4)
class OverRows(OverTokens):
    """The loss divides by rows, of which batches may have other numbers."""

    def loss(self, outputs, targets):
        return self.by_token(outputs, targets, "none").view_as(targets).sum(1).mean()

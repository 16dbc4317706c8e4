"""A training loop in plain PyTorch, the judge of a run: it imports nothing of dpexp.

It takes whole batches, with a dense gradient for every table. What no optimizer of PyTorch does on dense
gradients, that is SparseAdam on the rows of a batch and row-wise Adagrad, is written out below.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

SAMPLES, BATCH, IDS, CLASSES, IGNORED = 23, 11, 9, 3, -100
"""Batches of 11, 11 and 1 rows: over devices or ranks they are uneven, and of the last some have none."""
STEPS = 7
BY_NUMBERS = ("mse", "huber", "sum", "l1 sum")
"""The losses whose labels are numbers, and not classes."""
_WEIGHTS = torch.tensor([1.0, 2.0, 0.25])


class Net(nn.Module):
    """Ids ``(rows, 2)`` -> scores ``(rows, 2, 3)``; the labels are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(IDS, 4)
        self.block1, self.block2, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2 * CLASSES)
        self.frozen = nn.Parameter(torch.empty(8), requires_grad=False)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)

    def forward(self, ids: Tensor) -> Any:
        hidden = self.block1(self.embedding(ids).flatten(1) * self.frozen).tanh()
        return torch.stack(self.head(self.block2(hidden).tanh()).chunk(2, dim=1), dim=1)


class Inside(Net):
    """Returns its loss, too: the mean over the tokens."""

    def forward(self, ids: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        scores = super().forward(ids)
        classes = labels.flatten().to(scores.device)  # hybrid leaves the inputs on the host
        return {"loss": functional.cross_entropy(scores.flatten(0, 1), classes), "scores": scores}


def data(classes: bool) -> dict[str, Tensor]:
    """Ids with labels: classes, of which some are ignored, or numbers."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(IDS, (SAMPLES, 2), generator=generator)
    if not classes:
        return {"ids": ids, "labels": torch.randn(SAMPLES, 2, CLASSES, generator=generator)}
    labels = torch.randint(CLASSES, (SAMPLES, 2), generator=generator)
    labels[::3, 1] = IGNORED
    labels[::4, 0] = IGNORED
    labels[-1, 0] = 0
    return {"ids": ids, "labels": labels}


def weighted(scores: Tensor, labels: Tensor) -> Tensor:
    """A loss of a user, whose mean counts each class by a weight."""
    return functional.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), weight=_WEIGHTS.to(scores), ignore_index=IGNORED
    )


def _weight(labels: Tensor) -> Tensor:
    return _WEIGHTS[labels[labels != IGNORED]].sum()


weighted.loss_weight = _weight  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Training:
    """What a run computes, as its options say."""

    loss: str = "mse"
    optimizer: str = "sgd"
    sparse: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    warmup: int = 0

    @property
    def lr(self) -> float:
        """A sum has a larger gradient than a mean, to which two optimizers keep in proportion."""
        of_sum = "sum" in self.loss and self.optimizer in ("sgd", "momentum")
        return OPTIMIZERS[self.optimizer].lr / (60 if of_sum else 1)


@dataclass(frozen=True)
class Rate:
    """An optimizer with its learning rate and options."""

    make: Any
    lr: float
    options: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The options by name."""
        pairs = (entry.split("=") for entry in self.options.split(",") if entry)
        return {key: True if value == "True" else float(value) for key, value in pairs}

    def optimizer(self, parameters: list[nn.Parameter], lr: float) -> Any:
        return self.make(parameters, lr=lr, **self.values)


OPTIMIZERS = {
    "sgd": Rate(optim.SGD, 0.3),
    "momentum": Rate(optim.SGD, 0.1, "momentum=0.7,nesterov=True,weight_decay=0.1"),
    "adam": Rate(optim.Adam, 0.05, "eps=0.01"),
    "adamw": Rate(optim.AdamW, 0.05, "weight_decay=0.1,amsgrad=True"),
    "adamax": Rate(optim.Adamax, 0.05),
    "nadam": Rate(optim.NAdam, 0.05),
    "radam": Rate(optim.RAdam, 0.5),
    "adagrad": Rate(optim.Adagrad, 0.2, "initial_accumulator_value=0.1,eps=0.1"),
    "adadelta": Rate(optim.Adadelta, 2.0),
    "rmsprop": Rate(optim.RMSprop, 0.02),
}


class Table:
    """Adam on the rows of the batches, of a table with a dense gradient."""

    def __init__(self, table: nn.Parameter, lr: float) -> None:
        self.table, self.lr, self.steps = table, lr, 0
        self.eps = OPTIMIZERS["adam"].values["eps"]
        self.mean, self.square = torch.zeros_like(table.detach()), torch.zeros_like(table.detach())

    def step(self, rows: Tensor) -> None:
        """One step; ``rows`` are the ids that the batches looked up."""
        gradient = self.table.grad
        assert gradient is not None
        self.steps += 1
        with torch.no_grad():
            for row in sorted(set(rows.tolist())):
                self.table[row] -= self.lr * self._direction(row, gradient[row])

    def _direction(self, row: int, gradient: Tensor) -> Tensor:
        self.mean[row] = 0.9 * self.mean[row] + 0.1 * gradient
        self.square[row] = 0.999 * self.square[row] + 0.001 * gradient.square()
        first, second = 1 - 0.9**self.steps, 1 - 0.999**self.steps
        root: Tensor = (self.square[row] / second).sqrt() + self.eps / second**0.5
        return self.mean[row] / first / root


def loss_of(kind: str, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss of a whole batch."""
    if kind in BY_NUMBERS:
        apart = (scores - labels).abs()
        huber = torch.where(apart < 0.3, apart.square() / 2, 0.3 * (apart - 0.15))
        losses = {"mse": apart.square(), "sum": apart.square(), "l1 sum": apart, "huber": huber}[kind]
        return losses.sum() if "sum" in kind else losses.mean()
    if kind == "weighted":
        return weighted(scores, labels)
    total, rows = scores.new_zeros(()), scores.new_zeros(())
    tokens = 0
    for row, of_row in zip(scores, labels, strict=True):
        losses = [-row[i].log_softmax(0)[label] for i, label in enumerate(of_row) if label != IGNORED]
        total, tokens = total + sum(losses), tokens + len(losses)
        rows = rows + sum(losses) / max(1, len(losses))
    return {"tokens": total / tokens, "inside": total / tokens, "classes": rows / len(labels)}[kind]


def order(epoch: int, seed: int = 0) -> Tensor:
    """The order of an epoch: the permutation of a generator of its own."""
    digest = hashlib.sha256(f"order of epoch {epoch}/{seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(SAMPLES, generator=generator)


def batches(steps: int) -> Iterator[Tensor]:
    """The rows of so many batches, from the first epoch on."""
    per_epoch = -(-SAMPLES // BATCH)
    for step in range(steps):
        yield order(step // per_epoch)[step % per_epoch * BATCH :][:BATCH]


class Loop:
    """The model, its optimizer and the data of a training, in float64."""

    def __init__(self, training: Training) -> None:
        self.training, rate = training, OPTIMIZERS[training.optimizer]
        self.data = data(classes=training.loss not in BY_NUMBERS)
        self.net = Net().double()
        table, *others = (each for each in self.net.parameters() if each.requires_grad)
        by_rows = training.optimizer == "adam" and training.sparse
        self.table = Table(table, training.lr) if by_rows else None
        self.optimizer = rate.optimizer(others if by_rows else [table, *others], training.lr)

    def losses(self) -> list[float]:
        """The loss of each step after the warm-up, which has whole windows; before its update."""
        self.take(-(-self.training.warmup // self.training.accumulate) * self.training.accumulate)
        return self.take(STEPS)

    def take(self, steps: int) -> list[float]:
        """Steps from the first epoch on; what is accumulated at the end is lost."""
        found, looked_up, accumulate = [], [], self.training.accumulate
        for number, rows in enumerate(batches(steps), 1):
            ids, labels = (tensor[rows] for tensor in self.data.values())
            loss = loss_of(self.training.loss, self.net(ids), labels.double() if labels.dim() > 2 else labels)
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            found.append(loss.item())
            looked_up.append(ids.flatten())
            if number % accumulate == 0:
                self.update(torch.cat(looked_up))
                looked_up = []
        self.net.zero_grad()
        return found

    def update(self, ids: Tensor) -> None:
        if self.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.training.clip_norm)
        self.optimizer.step()
        if self.table is not None:
            self.table.step(ids)
        self.net.zero_grad()

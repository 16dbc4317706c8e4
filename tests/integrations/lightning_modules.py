"""What tests of Lightning have in common: modules as users write them, data, a watched ``fit``."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpexp.integrations.lightning import WatchCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}

# --- data ---


def numbers(rows: int = 24) -> TensorDataset:
    """Inputs (rows, 8) and targets (rows, 4)."""
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(rows, 8, generator=rng), torch.randn(rows, 4, generator=rng))


def tokens(ignored: Callable[[int], int] = lambda row: 0, rows: int = 24) -> TensorDataset:
    """Inputs (rows, 6, 8) and labels (rows, 6), of which so many are ignored in each row."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (rows, 6), generator=rng)
    for row in range(rows):
        labels[row, : ignored(row)] = -100
    return TensorDataset(torch.randn(rows, 6, 8, generator=rng), labels)


# --- modules ---


class Module(pl.LightningModule):
    """A small network; ``step`` is the loss of a batch, and ``coefficient`` multiplies it."""

    coefficient = 1.0

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self(inputs), targets)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.step(*batch) * self.coefficient
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(*batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Classifier(Module):
    """Its loss is a module of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.criterion(self(inputs).flatten(0, -2), targets.flatten())


class Normalized(Module):
    """BatchNorm, dropout, and what a forward may ask of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.drop(self.norm(self.net(inputs)))
        self.log("norm", outputs.norm())
        return outputs * (1 + self.trainer.current_epoch + self.global_step / 10)


class Manual(Module):
    """Manual optimization of ``micro`` micro-batches a step, clipped to ``norm``."""

    micro, divisor, norm, zeroes = 1, 1, 0.0, True

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer, place = self.optimizers(), batch_idx % self.micro
        if self.zeroes and not place:
            optimizer.zero_grad()
        self.manual_backward(self.step(*batch) * self.coefficient / self.divisor)
        if place == self.micro - 1:
            if self.norm:
                self.clip_gradients(optimizer, self.norm, "norm")
            optimizer.step()


def of(base: type[Module], **attributes: Any) -> Any:
    """A module of this class with other attributes."""
    return type(base.__name__, (base,), attributes)()


# --- loops ---


def fit(
    module: Any,
    loss: Any = None,
    *,
    data: Any = None,
    rows: int = 4,
    validates: bool = False,
    callbacks: Sequence[pl.Callback] = (),
    **trainer: Any,
) -> Any:
    """Train on batches of so many rows, and return the watch."""
    watching = WatchCallback(loss, track=False)
    loaders = DataLoader(data or numbers(), rows), DataLoader(numbers(8), 4) if validates else None
    with TemporaryDirectory() as folder, warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # Lightning's, of so little data
        options = {"default_root_dir": folder, **QUIET, **trainer}
        pl.Trainer(callbacks=[watching, *callbacks], **options).fit(module, *loaders)
    return watching.run


def fit_two(module: Any, loss: Any = None, *, strategy: Any = "ddp", **options: Any) -> Any:
    """The same on two ranks, in whose processes there is a process group already."""
    return fit(module, loss, strategy=strategy, devices=2, **options)

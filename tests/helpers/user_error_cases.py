"""Models, data and losses with one error each, for test_user_errors.py."""

import sys
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Model(nn.Module):
    """5 values -> 2, without an error; each subclass adds one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.second(self.first(x))

    def loss(self, outputs: Any, targets: Tensor) -> Any:
        return (outputs - targets).square().mean()

    def example(self, samples: int, generator: torch.Generator) -> Any:
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)


class SparseTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.table(ids))

    def example(self, samples: int, generator: torch.Generator) -> Any:
        return torch.randint(9, (samples,), generator=generator), torch.zeros(samples, 2)


# --- factories -----------------------------------------------------------------------------------


def wrapped() -> nn.Module:
    return nn.DataParallel(Model())


class Stop(BaseException):
    """As the frameworks have them that ``except Exception`` must not catch."""


def stopping() -> nn.Module:
    raise Stop("not today")


def verbose() -> nn.Module:
    raise ValueError("word " * 40_000)


# --- modules and parameters ----------------------------------------------------------------------


class Empty(Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Flatten(), nn.Flatten()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class Frozen(Model):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Locked(Model):
    """Cannot be copied, nor pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Nested(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(5, 5)), nn.Sequential(nn.Linear(5, 5))])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.second(self.first(x))


# --- forward -------------------------------------------------------------------------------------


class Raising(Model):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("mask")


class LeavingForward(Model):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(0)


class RaisingInReplicas(Model):
    """Raises for any batch but the full one of 30 rows and the last one of 10."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in (10, 30):
            raise LookupError("where are the others?")
        return super().forward(x)


class Lazy(Model):
    """Learns its input width from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)


class TwoDevices(Model):
    """Adds the outputs of two submodules, which ``--place`` may place on two devices."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.first(x)[:, :2]


class Centered(nn.Linear):
    """Subtracts the mean of the batch: a shard has another mean, so that no replicated layout verifies."""

    def __init__(self) -> None:
        super().__init__(5, 2)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Stuck(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise ArithmeticError("no way back")


class NoWayBack(Model):
    def forward(self, x: Tensor) -> Any:
        return Stuck.apply(super().forward(x))


# --- loss and samples ----------------------------------------------------------------------------


class RaisingExample(Model):
    def example(self, samples: int, generator: torch.Generator) -> Any:
        raise OSError("no samples today")


def vector_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


def raising_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise AssertionError("no targets")


class OneRaises(Dataset[Any]):
    """60 samples for ``Model``, of which one cannot be read."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if index == 37:
            raise FileNotFoundError("image 37 is gone")
        return torch.full((5,), index / 60), torch.zeros(2)

"""Models that layouts and verification must take although something in them is unusual."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Two(nn.Module):
    """A linear layer, something in the middle, and a linear layer: 5 -> 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(5, 5), self.made(), nn.Linear(5, 2)

    def made(self) -> Any:
        return nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.middle(self.first(x)))
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)


class Compiled(Two):
    def made(self) -> Any:
        return torch.compile(nn.Linear(5, 5), backend="eager")


class Checkpointed(Two):
    """Computes the middle again in backward, by a backward inside of it; once or several times."""

    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.calls):
            x = checkpoint(self.middle, x, use_reentrant=True)
        outputs: torch.Tensor = self.head(x)
        return outputs


class Synchronized(Two):
    def made(self) -> Any:
        return nn.SyncBatchNorm(5)


class Scan(Two):
    """A recurrence in float32 inside of a model of any type, as the scan of a Mamba is."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = self.first(x), self.middle.weight.float()
        state = torch.zeros_like(x, dtype=torch.float32)
        for _ in range(4):
            state = state * torch.sigmoid(weight.diagonal()) + x.float() @ weight
        outputs: torch.Tensor = self.head(x + 1e-2 * state.to(x.dtype))
        return outputs


class Routed(Two):
    """Two experts by one grouped product, which has no kernel for float64."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(2, 8, 8) / 3)
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x[:, 0] > 0).long()
        order = chosen.argsort(stable=True)
        ends = torch.stack([(chosen == 0).sum(), torch.tensor(len(x))]).to(torch.int32)
        x = nn.functional.grouped_mm(self.first(x)[order], self.experts, offs=ends)
        outputs: torch.Tensor = self.head(x[order.argsort()].contiguous())
        return outputs


class Gate(nn.Linear):
    """Computes in float32 whatever its inputs are, as routers do; with ``halves`` in two sums."""

    halves = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = [slice(0, 2), slice(2, 5)] if self.halves else [slice(None)]
        logits = sum(x[:, piece].float() @ self.weight[:, piece].float().t() for piece in pieces)
        return torch.softmax(logits + self.bias.float(), -1).to(x.dtype)


class Gated(Two):
    """The router has 1e-5 of all gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Gate(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-5 * self.head(self.router(x) * self.first(x))


class Scalar(Two):
    """Has a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class Differentiates(Two):
    """Its middle is called inside of ``torch.func.grad``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda each: torch.tanh(self.middle(each)).sum())(x)
        return self.head(self.first(x) + slope)  # type: ignore[no-any-return]


class Listed(Two):
    """Its middle is a list of parameters, which is never called."""

    def made(self) -> Any:
        return nn.ParameterList([torch.randn(5, 5), torch.randn(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.first(x) @ self.middle[0] + self.middle[1])  # type: ignore[no-any-return]


class CheckpointedFirst(Two):
    """Computes its first layer again in backward: the graph has none of its parameters before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return self.head(self.middle(x))  # type: ignore[no-any-return]


class Reads(Two):
    """Reads the parameters of its middle, which it never calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(self.first(x), self.middle.weight, self.middle.bias)
        return self.head(x)  # type: ignore[no-any-return]


class Casts(Two):
    """Has a layer in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.first(x).bfloat16()))  # type: ignore[no-any-return]


class Recurrent(Two):
    """Returns the hidden state of an RNN, too, which has the rows in dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 5, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        outputs, hidden = self.rnn(x[:, None])
        return super().forward(outputs[:, -1]), hidden

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs[0], targets) + outputs[1].square().mean()


class Remembers(Two):
    """Adds what its latest forward has computed, which it keeps in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        before = self.latest.mean(0) if self.latest is not None else torch.zeros_like(x[0])
        self.latest = x.detach()
        outputs: torch.Tensor = self.head(self.middle(x + before))
        return outputs


class OwnNumbers(Two):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + self.generator.random())

"""Preserve: a forward that only looks leaves a model as it was."""

from typing import Any

import torch
from torch import nn

from dpexp.training.preserve import preserved


class Stateful(nn.Module):
    """Keeps a state from batch to batch, counts its forwards, and has a table of rows of a largest norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(5, 4, max_norm=0.1), nn.LSTM(4, 4, batch_first=True)
        self.state: Any = None
        self.forwards = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        outputs, (h, c) = self.rnn(self.table(ids), self.state)
        self.state, self.last = (h.detach(), c.detach()), outputs
        return outputs


class Built(nn.Module):
    """Makes its layer in its first forward."""

    layer: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.is_built = False

    def forward(self, x: torch.Tensor) -> Any:
        if not self.is_built:
            self.layer, self.is_built = nn.Linear(x.size(1), 2), True
        return self.layer(x)


def test_a_forward_leaves_no_state_no_count_and_no_scaled_rows() -> None:
    model, ids = Stateful(), torch.arange(4).view(2, 2)
    weight = model.table.weight.detach().clone()
    with preserved(model):
        model(ids)
    assert (model.state, model.forwards, hasattr(model, "last")) == (None, 0, False)
    assert torch.equal(model.table.weight, weight)


def test_what_a_first_forward_has_made_stays() -> None:
    model = Built()
    with preserved(model):
        model(torch.ones(1, 3))
    layer = model.layer
    model(torch.ones(1, 3))
    assert model.layer is layer

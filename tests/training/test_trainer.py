"""Trainer: what an evaluation, a tried batch and a forward that only looks leave as they found it."""

from typing import Any

import pytest
import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.timing import Timer
from dpexp.training.preserve import preserved
from dpexp.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Sequential):
    """With statistics that a forward in training mode writes, and random numbers that it draws."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)


def trainer(**options: Any) -> tuple[Trainer, list[Any]]:
    """A trainer of a run, and the batches of an epoch."""
    values = {"strategy": "single", "devices": "cpu", "model": f"{__file__}:Net", "lr": 0.1}
    prepared = prepare(RunConfig.from_dict(values | options), one_batch=False)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer())
    return prepared.trainer(placed), list(prepared.batches(0))


def test_training_goes_on_in_training_mode_after_an_evaluation() -> None:
    trained, (first, *_) = trainer(strategy="whole", devices="auto", virtual=2)
    outputs = trained.evaluate(first)
    assert torch.equal(trained.evaluate(first), outputs), "nothing is drawn and no statistic written"
    assert all(module.training for module in trained.placed.module.modules())
    assert trained.buffers()["1.num_batches_tracked"] == 0
    trained.step(first)
    assert trained.buffers()["1.num_batches_tracked"] == 1


def test_a_batch_that_is_tried_before_a_run_changes_nothing() -> None:
    """Neither statistics nor gradients, and what is drawn next is the same."""
    values, found = {"strategy": "single", "devices": "cpu", "model": f"{__file__}:Net"}, []
    for one_batch in (True, False):
        model = prepare(RunConfig.from_dict(values), one_batch=one_batch).model
        assert all(parameter.grad is None for parameter in model.parameters())
        found.append({**model.state_dict(), "random": torch.get_rng_state()})
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_a_loss_that_depends_on_no_parameter_is_an_error() -> None:
    trained, (batch, *_) = trainer()
    trained.loss = lambda outputs, targets: (outputs.detach() - targets).square().mean()
    with pytest.raises(RuntimeError, match="no parameter that the optimizer has got a gradient"):
        trained.step(batch)


@pytest.mark.parametrize("autocast", ["", "bfloat16"])
def test_autocast_is_around_the_loss_as_it_is_around_the_forward(autocast: str) -> None:
    trained, (batch, *_) = trainer(autocast=autocast)
    found = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found.append((outputs.dtype, (targets @ targets.T).dtype))
        return (outputs - targets).square().mean()

    trained.loss = loss
    trained.step(batch)
    dtype = torch.bfloat16 if autocast else torch.float32
    assert found == [(dtype, dtype)]
    assert not torch.is_autocast_enabled("cpu")


# --- a forward that only looks ---


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

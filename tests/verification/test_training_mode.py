"""Training mode: batch norms, dropout and random numbers are compared with a single device chunk by chunk."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.parallel import DataParallel
from dpexp.strategies.modules import Wrapper
from dpexp.verification.result import Result

DEVICES = [torch.device("cpu", index) for index in range(3)]


def net(dropout: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.Linear(6, 2))


class Autoencoder(nn.Module):
    """Draws in its own forward, in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        code = self.encoder(x)
        return self.decoder(code + torch.randn_like(code))


class Recurrent(nn.Module):
    """Has dropout between its layers, and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(5, 4, 2, dropout=0.3, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        last = self.layers(x.unsqueeze(1))[0][:, 0]
        return self.head(functional.dropout(last, 0.2, self.training))


class Auxiliary(nn.Module):
    """Draws, and has a second head in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.second = nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = functional.dropout(self.layer(x), 0.2, self.training)
        return self.head(hidden) + self.second(hidden) if self.training else self.head(hidden)


class Predicts(Auxiliary):
    """Returns classes in eval mode, of which its loss has no gradient."""

    def forward(self, x: torch.Tensor) -> Any:
        outputs = super().forward(x)
        return outputs if self.training else outputs.argmax(1)


def prove(model: nn.Module, lay_out: Any, devices: list[torch.device] = DEVICES) -> Result:
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (12, 7, 12)]
    return dpexp.prove(model, lay_out, batches, functional.mse_loss, devices=devices)


def refused(model: nn.Module, lay_out: Any, devices: list[torch.device] = DEVICES) -> VerificationError:
    """The error of a wrong layout."""
    with pytest.raises(VerificationError) as caught:
        prove(model, lay_out, devices)
    return caught.value


def changed(change: Callable[[Any], object], around: Any = DataParallel) -> Any:
    def lay_out(model: nn.Module, devices: Any) -> Any:
        change(model)
        return around(model, devices)

    return lay_out


@pytest.mark.parametrize("make", [Recurrent, Predicts])
def test_right_layouts_are_verified_in_training_mode(make: Any) -> None:
    result = prove(make(), DataParallel)
    assert result.passed
    assert result.training_steps > 0
    assert all(each.error <= each.limit for each in result.worst.values())


def test_what_is_wrong_in_training_mode_alone_is_found() -> None:
    error = refused(net(), changed(lambda model: model.eval()))
    assert (error.step, error.module) == (1, "1")
    assert error.cause.startswith("in training mode, ")


@pytest.mark.parametrize("make", [Auxiliary, Predicts])
def test_what_a_model_computes_in_training_only_is_compared_there_or_not_at_all(make: Any) -> None:
    wrong = changed(lambda model: model.second.weight.register_hook(lambda gradient: 2 * gradient))
    error = refused(make(), wrong)
    assert (error.kind, error.tensor) == ("gradients", "second.weight")
    assert error.cause.startswith("in training mode, ")
    assert prove(make(), lambda model, devices: model, DEVICES[:2]).training_steps
    with pytest.raises(NotComparableError, match="may draw other random numbers"):
        prove(make(), Reordered, DEVICES[:2])


class MicroBatches(Wrapper):
    """Computes two micro-batches one after the other; ``alike`` with the same random numbers."""

    def __init__(self, module: nn.Module, devices: Any, alike: bool = False) -> None:
        super().__init__()
        self.module, self.alike = module, alike

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, outputs = torch.get_rng_state(), []
        for rows in x.chunk(2):
            if self.alike:
                torch.set_rng_state(state)
            outputs.append(self.module(rows))
        return torch.cat(outputs)


def alike(model: nn.Module, devices: Any) -> nn.Module:
    return MicroBatches(model, devices, alike=True)


def test_statistics_of_micro_batches_are_found() -> None:
    assert prove(net(0.0), lambda model, devices: model, DEVICES[:1]).passed
    assert refused(net(0.0), MicroBatches, DEVICES[:1]).module == "1"


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 2))


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES[:2]])
def test_the_same_masks_for_all_micro_batches_are_found(devices: list[torch.device]) -> None:
    assert prove(dropping(), MicroBatches, devices).passed
    error = refused(dropping(), alike, devices)
    assert error.module == "1"
    assert "the replicas draw the same random numbers" in error.cause


class Reordered(MicroBatches):
    """Computes the last micro-batch first, so that it gets the random numbers of the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = x.chunk(2)
        outputs = self.module(last)
        return torch.cat([self.module(first), outputs])


def test_other_masks_than_those_of_a_single_device_are_noted() -> None:
    result = prove(dropping(), Reordered, DEVICES[:2])
    assert "in training mode, random layers draw other numbers than on a single device" in "; ".join(
        result.notes
    )


def test_the_random_generators_of_the_host_are_as_before() -> None:
    model, batches = Autoencoder(), [(torch.randn(8, 5), torch.randn(8, 2))]
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    dpexp.prove(model, DataParallel, batches, functional.mse_loss, devices=DEVICES)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_a_proof_in_which_nothing_can_be_compared_is_an_error() -> None:
    batches = [(torch.randn(2, 5), torch.randn(2, 2))]  # chunks of one row
    with pytest.raises(NotComparableError, match=r"no mode of the model .* its chunks have one row$"):
        dpexp.prove(Autoencoder(), DataParallel, batches, functional.mse_loss, devices=DEVICES[:2])

"""Locate: planted bugs are caught; the message names module and parameter, and what the bug looks like."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers import planted
from helpers.in_ranks import in_ranks
from helpers.planted import Caching, Planted, mean_of_means, scaled, weighted, wrapped
from torch import nn

import dpexp
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.placed import Placed
from dpexp.verification.diagnosis.locate import located
from dpexp.verification.diagnosis.patterns import Found
from dpexp.verification.result import Result

MODEL = f"{planted.__file__}:Net"


def verified(place: Callable[[nn.Module], Placed], **config: Any) -> Result:
    prepared = prepare(RunConfig("single", devices="cpu", model=MODEL, **config))
    return verify(replace(prepared, strategy=Planted(place_wrong=place)))


def hooked(model: nn.Module, hook: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    model.get_parameter("second.weight").register_hook(hook)
    return model


OUTPUT = "the first output in forward order that differs is of "
GRADIENT = "the first gradient in backward order that differs is of parameter "
PLANTED: dict[str, tuple[Callable[[nn.Module], Placed], list[str]]] = {
    "output scaled": (
        wrapped("second", lambda module, inputs: module(inputs) * 1.5),
        [
            "step 1 (30 rows): outputs differ",
            OUTPUT + "the wrapper around module 'second'",
            "it is 1.5 times",
        ],
    ),
    "inside a module": (
        wrapped("second", lambda module, inputs: module(inputs * 2)),
        [OUTPUT + "module 'second'"],
    ),
    "rows repeated": (
        wrapped("", lambda module, inputs: torch.cat([module(inputs[:-1]), module(inputs[:1])])),
        [OUTPUT + "module 'first'", "rows 29 differ, the others are right"],
    ),
    "fewer rows": (
        wrapped("", lambda module, inputs: module(inputs[:-2])),
        ["outputs differ by inf", OUTPUT + "module 'first': it has 28 rows instead of 30: rows are dropped"],
    ),
    "not finite": (wrapped("", lambda module, inputs: module(inputs) / 0), ["outputs differ by inf"]),
    "mean of means of unknown shards": (
        wrapped("second", weighted(mean_of_means, 3)),
        [
            "step 2 (10 rows): gradients",
            GRADIENT + "'second.",
            "the mean of the shards' means",
            "4, 4, 2 rows",
        ],
    ),
    "times n": (
        wrapped("second", weighted(lambda rows: [2.0, 2.0], 2), pieces=2),
        [GRADIENT + "'second.", "it is 2 times too large: a sum over 2 shards instead of the mean"],
    ),
    "no gradient": (scaled(0.0, "first.bias"), [GRADIENT + "'first.bias'", "it is zero"]),
    "cast": (
        lambda model: planted.on_host(hooked(model, lambda gradient: gradient.bfloat16().to(gradient))),
        [GRADIENT + "'second.weight'", "its numbers are rounded to bfloat16: something casts it"],
    ),
    "detached": (
        wrapped("first", lambda module, inputs: module(inputs).detach()),
        [GRADIENT + "'first.", "the layout has no gradient for it"],
    ),
    "missing buffer": (lambda model: planted.on_host(Forgets(model)), ["buffers (calls)", "it is missing"]),
}


class Forgets(Caching):
    """Removes the model's buffer after it has been copied."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        del module.calls
        self.calls_of_module = torch.zeros(())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.module.__dict__["calls"] = self.calls_of_module
        return self.module(inputs)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught_and_described(name: str) -> None:
    place, words = PLANTED[name]
    result = verified(place)
    assert result.passed is False
    for word in words:
        assert word in result.cause


def test_a_layout_that_trains_what_is_frozen_is_described() -> None:
    def lay_out(model: nn.Module, _: Any) -> nn.Module:
        for name, parameter in list(model[0].named_parameters()):  # type: ignore[index]
            setattr(model[0], name, nn.Parameter(parameter.detach().clone()))  # type: ignore[index]
        return model

    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    batches = [(torch.randn(8, 6), torch.randn(8, 2))]
    with pytest.raises(dpexp.VerificationError, match="the layout trains what is frozen or not used"):
        dpexp.prove(model, lay_out, batches, nn.functional.mse_loss)


# --- the optimizer ---


class Stepped(torch.optim.SGD):
    """Takes another step for parameters that a layout has marked: with ``other``, before or after it."""

    def __init__(self, parameters: Any, other: Callable[[Any], object], after: bool = False) -> None:
        super().__init__(parameters, lr=0.01, momentum=0.9)
        self.other, self.after = other, after

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        is_laid_out = any(
            hasattr(each, "laid_out") for group in self.param_groups for each in group["params"]
        )
        if is_laid_out and not self.after:
            self.other(self)
        super().step()
        if is_laid_out and self.after:
            self.other(self)


def marked(model: nn.Module, devices: Any) -> nn.Module:
    for parameter in model.parameters():
        parameter.laid_out = True  # type: ignore[attr-defined]
    return model


def other_lr(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.015


def other_momentum(optimizer: Any) -> None:
    for kept in optimizer.state.values():
        kept["momentum_buffer"].mul_(1.01)


def in_bfloat16(optimizer: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.copy_(parameter.grad.bfloat16())


STEPPED = {
    "lr": (other_lr, False, "makes an update 1.5 times the single device's: its lr is 0.015 instead of 0.01"),
    "state": (other_momentum, True, "keeps another 'momentum_buffer'"),
    "type": (in_bfloat16, False, "same gradients; numbers that are rounded to bfloat16 have an error of"),
}


@pytest.mark.parametrize("name", STEPPED)
def test_an_optimizer_that_makes_another_update_is_named_with_what_differs(name: str) -> None:
    other, after, words = STEPPED[name]
    batches = [(torch.randn(8, 5), torch.randn(8, 4))]
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))
    make = partial(Stepped, other=other, after=after)
    with pytest.raises(dpexp.VerificationError) as caught:
        dpexp.prove(model, marked, batches, nn.functional.mse_loss, make)
    assert "the optimizer (Stepped) " in caught.value.cause
    assert words in caught.value.cause
    assert caught.value.module in ("0", "2")


def searches_of_ranks(group: ProcessGroup) -> list[str]:
    """Rank 1 raises in its second part; afterwards all are together again."""

    def search() -> Found:
        group.together(lambda: 0)
        return Found(str(group.together(lambda: 1 // (1 - group.rank))))

    searches = {"the first module": search, "the next": lambda: Found("found")}
    return [located(what, each).text for what, each in searches.items()]


def test_an_error_while_ranks_locate_a_difference_is_described_by_all() -> None:
    (first, second), other = in_ranks(2, __file__, "searches_of_ranks")["searches_of_ranks"]
    assert [first, second] == other
    assert first.startswith("the first module: not located, rank 1 raised ZeroDivisionError: ")
    assert second == "found"

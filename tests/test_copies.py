"""Copies: a module is copied with its hooks and closures, whatever a forward has left in it."""

import threading
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.copies import copied, copied_module

ROWS = torch.randn(8, 6)
BATCHES = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(3)]
SHORT: dict[str, Any] = {"steps": 2, "warmup": 1, "phase_steps": 1, "track": False, "quiet": True}


@dataclass
class Kept:
    values: Tensor | None = None


class Keeps(nn.Module):
    """Keeps what its forward computes wherever Python can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.map, self.history, self.pairs, self.kept = {}, [], (), Kept()  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        self.map["nested"] = {"y": [y]}
        self.history.append(y)
        self.pairs, self.kept.values, self.attention = (y, y), y, y
        outputs: Tensor = self.head(y)
        return outputs


class Hooked(nn.Module):
    """A hook of a layer stores what the forward reads; how, the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.kept: dict[str, Tensor] = {}

    def store(self, module: nn.Module, args: Any, outputs: Tensor) -> None:
        self.kept["first"] = outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.first(x)))
        return y + self.kept["first"].mean(1, keepdim=True)


def by_closure(model: Hooked) -> Any:
    return lambda module, args, outputs: model.kept.__setitem__("first", outputs)


def by_default(model: Hooked) -> Any:
    return lambda module, args, outputs, kept=model.kept: kept.update(first=outputs)


def by_partial(model: Hooked) -> Any:
    def write(name: str, module: nn.Module, args: Any, outputs: Tensor) -> None:
        model.kept[name] = outputs

    return partial(write, "first")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_forward_left_in_a_model_is_copied_without_its_graph(dtype: torch.dtype) -> None:
    model = Keeps()
    model(ROWS)
    made: Any = copied(model, dtype)
    left = [made.map["nested"]["y"][0], *made.history, *made.pairs, made.kept.values, made.attention]
    assert len(left) == 6
    assert all(each.is_leaf and each.dtype == dtype for each in left)
    assert len(model.history) == 1
    made(ROWS.to(dtype)).sum().backward()
    assert len(model.history) == 1, "the copy has a list of its own"


@pytest.mark.parametrize("hook", [by_closure, by_default, by_partial, Hooked.store.__get__])
def test_a_hook_of_a_copy_writes_to_the_copy(hook: Any) -> None:
    model = Hooked()
    model.first.register_forward_hook(hook(model))
    made = copied_module(model)
    made(ROWS)
    assert not model.kept
    assert torch.equal(made(ROWS), model(ROWS))


@pytest.mark.parametrize("is_method", [False, True])
def test_a_forward_that_was_replaced_by_a_closure_computes_with_the_copys_parameters(is_method: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 2))
    forward = model.forward
    model.forward = lambda x: 2 * forward(x)  # type: ignore[method-assign, assignment]
    if is_method:
        model.forward = MethodType(lambda _, x: 2 * forward(x), model)  # type: ignore[method-assign]
    made = copied_module(model)
    made(ROWS).sum().backward()
    assert made[0].weight.grad is not None
    assert model[0].weight.grad is None


@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, parametrizations.weight_norm])
def test_a_computed_weight_is_right_in_a_copy(normed: Any) -> None:
    model = nn.Sequential(normed(nn.Linear(6, 6)), nn.Linear(6, 6), nn.Linear(6, 2))
    model(ROWS)
    model.eval()
    made = copied(model, torch.float64)
    assert torch.allclose(made(ROWS.double()).float(), model(ROWS), atol=1e-6)
    made(ROWS.double()).sum().backward()
    assert all(each.grad is not None for each in made.parameters())
    assert all(each.grad is None for each in model.parameters())


def test_tied_weights_and_a_computed_buffer_stay_what_they_are() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    model.register_buffer("table", model[0].weight.square())
    made: Any = copied(model, torch.float64)
    assert made[0].weight is made[1].weight
    assert made.table.dtype == torch.float64
    assert made.table.is_leaf


def test_a_hook_of_a_parameter_is_the_copys_too() -> None:
    model = nn.Linear(6, 2)
    model.weight.register_hook(lambda gradient: 0 * gradient)
    made = copied_module(model)
    made(ROWS).sum().backward()
    assert not made.weight.grad.any()  # type: ignore[union-attr, operator]


def test_an_attribute_that_cannot_be_copied_is_named() -> None:
    model = nn.Sequential(nn.Linear(6, 2))
    model[0].lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(
        ConfigError,
        match=r"^Sequential cannot be copied \(TypeError: .*\): attribute 'lock' of 0 holds a lock\. Give",
    ):
        copied_module(model)


def test_a_model_that_was_called_before_and_keeps_tensors_is_run_and_verified() -> None:
    model = Keeps()
    model(ROWS)
    record = dpexp.run("whole", model=model, data=BATCHES, virtual=2, **SHORT)
    assert record.verification["passed"]
    assert len(model.history) == 1, "a copy is trained"


class CopiesItself(nn.Linear):
    """Its copy is made anew, without the memo of ``copy.deepcopy``."""

    def __init__(self) -> None:
        super().__init__(3, 2)

    def __deepcopy__(self, memo: Any) -> Any:
        made = CopiesItself()
        made.load_state_dict(self.state_dict())
        return made


def test_a_model_that_copies_itself_is_taken() -> None:
    model = CopiesItself()
    made = copied_module(model)
    assert made.weight is not model.weight
    assert torch.equal(made.weight, model.weight)  # type: ignore[arg-type]

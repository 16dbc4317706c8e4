"""Attributes: what an optimizer keeps besides groups and state is read, and given to another one."""

from collections import deque
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from dpexp.training.attributes import HiddenStateError, attributes, write_attributes


class Kept(torch.optim.SGD):
    """Keeps a schedule, a counter, lists of tensors and of numbers, and a number in the closure of a hook."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.schedule, self.count = StepLR(self, 2, 0.1), 0
        self.averages = [torch.zeros_like(each) for group in self.param_groups for each in group["params"]]
        self.recent: deque[float] = deque(maxlen=2)
        hooked = 0

        def hook(*_: Any) -> None:
            nonlocal hooked
            hooked += 2

        def later() -> float:
            return unknown  # which is in an empty cell

        self.register_step_post_hook(hook)
        self.later = later
        if hooked:
            unknown = 1.0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.schedule.step()
        self.count += 1
        self.recent.append(self.count)
        self.averages[0] += 1


def kept() -> Kept:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return Kept([parameter])


def test_attributes_of_any_depth_are_those_of_another_optimizer_once_they_are_written() -> None:
    trained, fresh = kept(), kept()
    for _ in range(3):
        trained.step()
    values = attributes(trained)
    assert {"schedule.last_epoch": 3, "count": 3, "recent": [2, 3]}.items() <= values.items()
    assert [values[path] > 0 for path in values if path.endswith("hooked")] == [True]
    assert values["averages.0"].tolist() == [3.0] * 3
    write_attributes(fresh, values)
    again = attributes(fresh)
    assert again.pop("averages.0").tolist() == values.pop("averages.0").tolist()
    assert again == values
    trained.averages[0] += 1
    assert attributes(fresh)["averages.0"].tolist() == [3.0] * 3, "it is a copy"


def test_an_attribute_for_which_the_other_optimizer_has_no_place_is_an_error() -> None:
    for values in ({"momentum.0": torch.ones(3)}, {"averages.0": torch.ones(2)}):
        with pytest.raises(
            HiddenStateError, match=r"Kept keeps '.*' in an attribute, .* self.state\[parameter\]"
        ):
            write_attributes(kept(), values)

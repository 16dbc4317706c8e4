"""By nature: buffers that replicas write from their own rows are set right after a step, and no others."""

from typing import Any

import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.strategies.placed import Placed
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer
from dpexp.verification.equivalence import Equivalence
from dpexp.verification.result import Result

DEVICES = [torch.device("cpu", index) for index in range(2)]


class Shifting(nn.Module):
    """Adds a buffer, which nothing writes, and counts its rows in another, which is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self.register_buffer("shift", torch.ones(2))
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.rows.add_(len(x))
        return self.linear(x) + self.shift


def replicated(model: nn.Module) -> Placed:
    return STRATEGIES["whole"](RunConfig("whole", virtual=2)).place(model, DEVICES, Timer(DEVICES))


def shifted_by_each_step(model: Any) -> Placed:
    """What is written is not in the outputs of this step, but in those of the next."""

    def write(gradient: torch.Tensor) -> None:
        model.shift.add_(1)

    model.linear.weight.register_hook(write)
    return replicated(model)


def compared(lay_out: Any) -> Result:
    torch.manual_seed(0)
    batches = [Batch((torch.randn(rows, 5),), torch.randn(rows, 2), rows, rows) for rows in (8, 5)]

    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    return Equivalence(Shifting(), lay_out, batches, nn.functional.mse_loss, sgd).result()


def test_a_buffer_that_replicas_write_is_set_right_and_noted() -> None:
    result = compared(replicated)
    assert result.passed
    assert "the forward writes to rows (by 5.0e-01), which differs from a single device" in result.notes[-1]


def test_a_buffer_that_a_single_device_does_not_write_is_compared_as_it_is() -> None:
    assert "buffers (shift) differ by 1.0e+00" in compared(shifted_by_each_step).cause

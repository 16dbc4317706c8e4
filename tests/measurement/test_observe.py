"""Observation: every call has a row, and the model is not changed."""

import torch
from torch import nn

from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.measurement.observe import EPOCH_LIMIT, device_map, observe, observed_batches
from dpexp.strategies.placed import Placed
from dpexp.strategies.registry import STRATEGIES
from dpexp.timing import Timer


def single(model: nn.Module) -> Placed:
    return STRATEGIES["single"](RunConfig("single").options).place(model, (), Timer())


def batch_of(inputs: torch.Tensor) -> Batch:
    return Batch((inputs,), None, len(inputs), len(inputs))


def whole(model: nn.Module, count: int) -> Placed:
    used = devices.virtual(count)
    return STRATEGIES["whole"](RunConfig("whole", virtual=count).options).place(model, used, Timer(used))


def test_the_model_is_not_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    placed = whole(model, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch, random = batch_of(torch.randn(8, 3)), torch.get_rng_state()
    observe(placed, [batch], nn.functional.mse_loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert not any(part._forward_hooks for part in placed.module.modules())


def test_a_long_epoch_is_observed_by_its_first_batches_and_its_last() -> None:
    batches = [batch_of(torch.zeros(4, 2))] * EPOCH_LIMIT + [batch_of(torch.zeros(3, 2))]
    numbers = observed_batches(EPOCH_LIMIT + 51)
    rows = observe(single(nn.Linear(2, 2)), batches, nn.functional.mse_loss, numbers)
    assert [row["batch"] for row in rows] == [*range(EPOCH_LIMIT), EPOCH_LIMIT + 50] == numbers
    assert rows[-1]["inputs"] == [[3, 2]]
    assert observed_batches(EPOCH_LIMIT) == [*range(EPOCH_LIMIT)]


def test_a_module_called_twice_has_two_rows() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(inputs))  # type: ignore[no-any-return]

    rows = observe(whole(Twice(), 2), [batch_of(torch.zeros(4, 2))], nn.functional.mse_loss)
    assert [(row["module"], row["replica"]) for row in rows] == [
        ("", None),
        ("", 0),
        ("", 1),
        ("layer", 0),
        ("layer", 0),
        ("layer", 1),
        ("layer", 1),
    ]


def test_buffers_are_in_the_device_map() -> None:
    rows = device_map(whole(nn.BatchNorm1d(3), 3))
    kinds = {row["parameter"]: (row["kind"], row["bytes"], row["dtype"]) for row in rows}
    assert kinds["running_mean"] == ("buffer", 12, "float32")
    assert kinds["num_batches_tracked"] == ("buffer", 8, "int64")
    assert {tuple(row["replicas"]) for row in rows} == {("cpu:1", "cpu:2")}

"""DataParallel and data_parallel against the single module: PyTorch's own test cases, on virtual devices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpexp.devices import HOST, accelerators, current_device, place, virtual
from dpexp.parallel import DataParallel, data_parallel

DOUBLE = torch.double
EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def assert_same(module: nn.Module, *inputs: Any, devices: Any = None, **kwargs: Any) -> Any:
    """Both forms give the module's outputs and gradients; returns the outputs of DataParallel."""
    devices = virtual(3) if devices is None else devices
    expected = module(*inputs, **kwargs)
    expected.square().abs().sum().backward()
    wanted = gradients(module)
    for form in (DataParallel(module, devices), None):
        found = (
            form(*inputs, **kwargs)
            if form is not None
            else data_parallel(module, inputs, devices, module_kwargs=kwargs)
        )
        torch.testing.assert_close(found, expected, **EXACT)
        found.square().abs().sum().backward()
        torch.testing.assert_close(gradients(module), wanted, **EXACT)
    return found


def test_an_empty_batch_runs_in_every_replica() -> None:
    calls: list[Any] = []
    out = DataParallel(Call(lambda x: calls.append(current_device()[1]) or x * 2), virtual(3))(
        torch.zeros(0, 4)
    )
    assert out.shape == (0, 4)
    assert sorted(calls) == [0, 1, 2]


def test_several_inputs_numbers_and_keyword_arguments() -> None:
    def forward(a: Any, b: Any, factor: float, c: Any = None) -> Any:
        return factor * (a * b if c is None else a * b + c)

    a, b = inputs = [torch.randn(5, 5, dtype=DOUBLE, requires_grad=True) for _ in range(2)]
    for kwargs in ({}, {"c": torch.randn(5, 5, dtype=DOUBLE)}):
        expected = forward(a, b, 0.3, **kwargs)
        wanted = torch.autograd.grad(expected.sum(), inputs)
        for devices in (virtual(2), virtual(2)[::-1], virtual(1)):
            assert_same(Call(forward), a, b, 0.3, devices=devices, **kwargs)
            found = DataParallel(Call(forward), devices)(a, b, 0.3, **kwargs)
            torch.testing.assert_close(torch.autograd.grad(found.sum(), inputs), wanted, **EXACT)


class Tied(nn.Module):
    """One layer under two names, called twice, one weight in two layers, and weights in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.again = nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)
        self.other.weight = self.layer.weight
        self.weights = nn.ParameterList([torch.randn(()), torch.randn(())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weights[0] * self.other(self.again(x)) + self.weights[1] * self.layer(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rnn.flatten_parameters()
        outputs: torch.Tensor = self.rnn(x.unflatten(1, (2, 3)))[0]
        return outputs


class Scale(nn.Module):
    """A parameter in a dict, a buffer, a frozen parameter, one of integers, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name = nn.ParameterDict({"scale": torch.randn(6)})
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.spare = nn.Parameter(torch.randn(6))
        self.order = nn.Parameter(torch.arange(6), requires_grad=False)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by_name["scale"] + (self.shift * self.frozen)[self.order]


@pytest.mark.parametrize(("rows", "count"), [(1, 2), (9, 8), (9, 1)])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(6, 4, bias=False),
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(), nn.PReLU(), nn.LayerNorm(6)).eval(),
        lambda: nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 6, 3, padding=1, groups=6)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
        Tied,
        Recurrent,
        Scale,
    ],
    ids=["linear", "norms", "depthwise", "weight norm", "tied", "recurrent", "scale"],
)
def test_layers_of_every_kind(layer: Callable[[], nn.Module], rows: int, count: int) -> None:
    assert_same(layer().double(), torch.randn(rows, 6, dtype=DOUBLE), devices=virtual(count))


def test_the_same_seed_gives_the_same_bits() -> None:
    def run() -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 30), nn.Dropout(), nn.Linear(30, 30), nn.RReLU(), nn.Linear(30, 3))
        DataParallel(net, virtual(8))(torch.randn(30, 20)).square().sum().backward()
        return gradients(net)

    first = run()
    for _ in range(10):
        for a, b in zip(first, run(), strict=True):
            assert torch.equal(a, b)


# --- the device of the module -----------------------------------------------------------------------


def test_the_error_for_a_misplaced_module_names_tensor_and_both_devices() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    message = r"on device cpu:0 \(device_ids\[0\]\) but found '1.weight' on device meta"
    for run in (DataParallel(net, virtual(2)), lambda x: data_parallel(net, x, virtual(2))):
        with pytest.raises(RuntimeError, match=message):
            run(torch.zeros(2, 2))


def test_a_module_on_another_virtual_device_is_an_error() -> None:
    cpu0, cpu1 = virtual(2)
    net = place(nn.BatchNorm1d(2, affine=False), cpu1)
    x = torch.zeros(4, 2)
    with pytest.raises(RuntimeError, match=r"on device cpu:0 .* found 'running_mean' on device cpu:1"):
        DataParallel(net, [cpu0, cpu1])(x)
    DataParallel(net, [cpu1, cpu0])(x)
    place(net, cpu0)
    DataParallel(net, [cpu0, cpu1])(x)
    place(net, HOST)
    DataParallel(net, [cpu0, cpu1])(x)


def test_without_devices_it_passes_through() -> None:
    calls: list[Any] = []
    module = Call(lambda x: calls.append((current_device(), len(x))) or x)
    x = torch.zeros(5, 2)
    assert DataParallel(module, []).device_ids == []
    assert torch.equal(DataParallel(module, [])(x), x)
    assert torch.equal(data_parallel(module, x, []), x)
    assert data_parallel(Call(lambda x, factor: factor), x, [], module_kwargs={"factor": 2}) == 2
    assert calls == [((None, None), 5)] * 2
    if not accelerators():
        assert DataParallel(module).device_ids == []
        assert torch.equal(data_parallel(module, x), x)

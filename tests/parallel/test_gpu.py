"""dpexp.parallel on real accelerators, and beside PyTorch's own."""

from typing import Any

import pytest
import torch
from torch import nn

from dpexp.devices import accelerators, current_device, place
from dpexp.parallel import DataParallel, data_parallel, parallel_apply

pytestmark = pytest.mark.gpu


def pair() -> list[torch.device]:
    """Two devices: the first accelerator and the second, or the first one twice."""
    return [accelerators()[0], accelerators()[-1]]


def widest() -> torch.dtype:
    """The widest type of the accelerator: MPS has no float64."""
    return torch.float32 if accelerators()[0].type == "mps" else torch.float64


def assert_close(found: Any, expected: Any) -> None:
    limit = 1e-12 if widest() is torch.float64 else 1e-5
    torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


def net() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return net.to(accelerators()[0], widest())


def grads(module: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


@pytest.mark.parametrize("rows", [1, 7, 30])
def test_outputs_and_gradients_equal_the_single_module_and_torchs_own(rows: int) -> None:
    module, x = net(), torch.randn(rows, 6, dtype=widest())
    results = []
    for run in (
        lambda x: module(x.to(pair()[0])),
        DataParallel(module, pair()),
        lambda x: data_parallel(module, x, pair()),
        nn.DataParallel(module, pair()),
    ):
        out = run(x)
        assert out.device == pair()[0]
        out.square().sum().backward()
        results.append([out.detach(), *grads(module)])
    for found in results[1:]:
        assert_close(found, results[0])


def test_sparse_gradients_come_back_from_another_device() -> None:
    table = nn.Embedding(10, 4, sparse=True).to(pair()[0], widest())
    ids = torch.randint(10, (9, 2), device=pair()[0])
    DataParallel(table, [pair()[0], torch.device("cpu", 0)])(ids).sum().backward()
    found = table.weight.grad.to_dense()
    table.zero_grad()
    table(ids).sum().backward()
    torch.testing.assert_close(found, table.weight.grad.to_dense())


def test_indices_name_accelerators_and_none_means_all() -> None:
    module = nn.Linear(2, 2).to(pair()[0])
    assert DataParallel(module).device_ids == accelerators()
    assert DataParallel(module, [0, 0]).device_ids == [pair()[0]] * 2


def test_replicas_have_the_callers_device_stream_and_autocast() -> None:
    class State(nn.Module):
        def forward(self) -> Any:
            stream, dtype = torch.accelerator.current_stream(), torch.get_autocast_dtype(device.type)
            return current_device()[0], torch.accelerator.current_device_index(), stream, dtype

    device = pair()[0]
    side, before = torch.Stream(device), torch.accelerator.current_stream(device)
    torch.accelerator.set_stream(side)
    try:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            states = parallel_apply([State(), State()], [(), ()], None, [device] * 2)
    finally:
        torch.accelerator.set_stream(before)
    assert states == [(device, device.index, side, torch.bfloat16)] * 2


@pytest.mark.multigpu
def test_the_module_must_be_on_the_first_device() -> None:
    one, two = accelerators()[:2]
    module = place(nn.Linear(2, 2), two)
    with pytest.raises(RuntimeError, match=f"on device {one} .* on device {two}"):
        DataParallel(module, [one, two])(torch.zeros(4, 2))
    assert DataParallel(module, [two, one])(torch.zeros(4, 2)).device == two

"""Verification on accelerators: layouts there are compared with the host."""

from typing import Any

import pytest
import torch
from helpers import layouts
from torch import nn
from torch.nn.functional import mse_loss

import dpexp
from dpexp import devices
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.registry import STRATEGIES

OPTIONS = {"custom": {"layout": f"{layouts.__file__}:replicated"}, "place": {"place": ["block2=cpu"]}}
"""The options that a strategy does not run without."""
LAYOUTS = [name for name in STRATEGIES if name not in ("single", "ddp", "fsdp")]
"""The strategies that lay a model out in one process."""


def verified(strategy: str, **options: Any) -> bool | None:
    return verify(prepare(RunConfig(strategy, options=OPTIONS.get(strategy, {}), **options))).passed


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_layout_on_a_gpu_equals_the_host(strategy: str, count: int) -> None:
    assert verified(strategy, devices=",".join([str(devices.accelerators()[0])] * count))


@pytest.mark.multigpu
@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("backend", ["torch", "portable"])
def test_every_layout_on_all_gpus_equals_the_host(strategy: str, backend: str) -> None:
    assert len(devices.accelerators()) >= 2
    assert verified(strategy, devices="auto", backend=backend)


@pytest.mark.gpu
def test_what_a_kernel_of_an_accelerator_rounds_is_measured_there() -> None:
    """CUDA's hardswish of float64 rounds 1/6 to float32. The model is on the accelerator before, too."""
    gpu = devices.accelerators()[0]

    def lay_out(model: Any, used: list[torch.device]) -> nn.Module:
        return devices.place(model, used[0])

    def wrong(model: Any, used: list[torch.device]) -> nn.Module:
        model[2].weight.register_hook(lambda gradient: gradient * 1.001)
        return lay_out(model, used)

    model = nn.Sequential(nn.Linear(5, 8), nn.Hardswish(), nn.Linear(8, 2)).to(gpu)
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (30, 10, 30)]
    result = dpexp.prove(model, lay_out, batches, mse_loss, devices=[gpu])
    assert 1e-12 < result.tolerance < 1e-5
    assert any("smaller errors are not seen" in note for note in result.notes)
    with pytest.raises(dpexp.VerificationError, match=r"2\.weight"):
        dpexp.prove(model, wrong, batches, mse_loss, devices=[gpu])

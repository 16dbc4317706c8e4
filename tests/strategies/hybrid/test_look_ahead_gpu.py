"""Look-ahead on an accelerator, whose copies have streams of their own."""

from typing import Any

import pytest
from hybrid_steps import assert_same_bits, prepared_trainer, trained
from torch import nn

from dpexp import devices
from dpexp.strategies.modules.wrappers import parts


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["embedding:rows=5000,dim=64", "dlrm:tables=5,rows=3000,dim=16"])
def test_pipelined_steps_on_a_gpu_give_the_bits_of_serial_ones(model: str) -> None:
    gpu = str(devices.accelerators()[0])
    both = []
    for pipeline in (False, True):
        values: dict[str, Any] = {"virtual": None, "devices": gpu, "model": model, "batch_size": 256}
        values["lookahead"] = 2 if pipeline else 1
        prepared, steps = prepared_trainer(
            **values, data="random:samples=20000", pipeline=pipeline, optimizer="adagrad"
        )
        source = prepared.endless_batches()
        both.append((steps, trained(steps, [next(source) for _ in range(200)])))
    (serial, losses), (pipelined, found) = both
    assert found == losses
    assert_same_bits(pipelined, serial)
    assert [part for part in parts(pipelined.placed.module) if isinstance(part.module, nn.Embedding)]

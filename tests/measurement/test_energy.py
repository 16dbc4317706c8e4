"""Energy: what NVML counts, and what a Record has of it."""

import pytest
import torch

from dpexp.measurement.energy import EnergyMeter
from dpexp.record.record import Record
from dpexp.record.view import RecordView


@pytest.mark.gpu
def test_a_cuda_device_uses_energy() -> None:
    pytest.importorskip("pynvml")
    meter = EnergyMeter([torch.device("cuda", 0)])
    matrix = torch.ones(4096, 4096, device="cuda:0")
    for _ in range(300):
        matrix = matrix @ matrix / 4096
    torch.cuda.synchronize()
    assert meter.joules()["cuda:0"] > 0


def test_energy_is_divided_by_the_measured_steps() -> None:
    assert EnergyMeter([torch.device("cpu", 0)]).joules() == {}
    record = Record(work={"energy": {"joules": {"cuda:0": 4.0, "cuda:1": 2.0}, "steps": 4}})
    assert RecordView(record).joules_per_step == 1.5
    record.work["energy"]["steps"] = 0  # none was measured
    assert RecordView(record).joules_per_step is None

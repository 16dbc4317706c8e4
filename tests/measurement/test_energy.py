"""Energy: the counters of NVML, and what a Record has of them."""

from types import SimpleNamespace

import pytest
import torch

from dpexp.measurement.energy import EnergyMeter
from dpexp.record.record import Record
from dpexp.record.view import RecordView


def test_each_cuda_device_has_the_counter_of_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of NVIDIA's library that is used, and of PyTorch, which only a machine with a driver has."""
    pynvml = pytest.importorskip("pynvml")
    counters = {"GPU-a0": 1_000, "GPU-a1": 5_000}  # in mJ
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: counters[handle])
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"a{device.index}")
    )
    meter = EnergyMeter([torch.device("cuda", 1), torch.device("cpu")])
    counters["GPU-a1"] += 250
    assert meter.joules() == {"cuda:1": 0.25}

    def refuse(_: str) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    assert meter.joules() == {}


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

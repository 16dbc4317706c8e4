"""Energy: the counters of processors, as the kernel's powercap files have them."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_runs import recorded

from dpexp.config.run_config import RunConfig
from dpexp.engine import passes as measure
from dpexp.measurement import energy
from dpexp.measurement.energy import EnergyMeter
from dpexp.record.view import RecordView


def zone(folder: Path, number: str, name: str, count: int) -> Path:
    path = folder / f"intel-rapl:{number}"
    path.mkdir()
    for file, text in (("name", name), ("energy_uj", count), ("max_energy_range_uj", 10_000_000)):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def test_processors_are_added_up_without_their_parts_and_past_the_end_of_a_counter(tmp_path: Path) -> None:
    first, second = zone(tmp_path, "0", "package-0", 1_000_000), zone(tmp_path, "1", "package-1", 9_000_000)
    for number, name in (("0:0", "core"), ("0:1", "dram"), ("2", "psys")):
        zone(tmp_path, number, name, 5_000_000)
    meter = EnergyMeter([], powercap=tmp_path)
    first.write_text("3500000\n")
    second.write_text("500000\n")  # it began anew at 10 J
    assert meter.joules() == {"package-0": 2.5, "package-1": 1.5}
    assert EnergyMeter([], with_host=False, powercap=tmp_path).joules() == {}


def test_a_run_has_the_energy_of_its_measured_steps(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Consuming(EnergyMeter):
        def joules(self) -> dict[str, float]:
            counter.write_text("7000000\n")
            return super().joules()

    counter = zone(tmp_path, "0", "package-0", 1_000_000)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(measure, "EnergyMeter", Consuming)
    record = recorded(dpexp_home, RunConfig("single", steps=4, phase_steps=0, check=False, devices="cpu"))
    assert record.work == {"energy": {"joules": {"package-0": 6.0}, "steps": 4}}
    assert record.summary["joules_per_step"] == 1.5
    record.work["energy"]["steps"] = 0  # none was measured
    assert RecordView(record).joules_per_step is None


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
    meter = EnergyMeter([torch.device("cuda", 1), torch.device("cpu")], with_host=False)
    counters["GPU-a1"] += 250
    assert meter.joules() == {"cuda:1": 0.25}

    def refuse(_: str) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    assert meter.joules() == {}


def test_what_the_machine_does_not_tell_is_left_out(tmp_path: Path) -> None:
    counter = zone(tmp_path, "0", "package-0", 1)
    meter = EnergyMeter([torch.device("cpu", 0)], powercap=tmp_path)
    counter.unlink()
    assert meter.joules() == {}
    assert EnergyMeter([], powercap=tmp_path).joules() == {}  # no right to read it, or gone
    assert EnergyMeter([], powercap=tmp_path / "missing").joules() == {}

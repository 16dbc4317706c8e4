"""System metrics: names and units of MLflow's own monitor, those of NVIDIA's devices included."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dpexp.record.journal.reader import JournalReader
from dpexp.tracking.process import system

LIBRARY: dict[str, Any] = {
    "nvmlInit": lambda: None,
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3e9, total=12e9),
}
"""The part of NVIDIA's library that is used, which only a machine with a driver has: two devices."""


def use_of(index: int) -> Any:
    """The second device does not report how busy it is, as in a partitioned one."""
    if index == 1:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return SimpleNamespace(gpu=40)


def sampled(path: Path) -> set[str]:
    """The names in the file of a sampler that starts and stops."""
    sampler = system.start(path, os.getpid())
    assert sampler is not None
    sampler.stop()
    return {name for entry in JournalReader(path) for name in entry["extend"]}


def test_each_nvidia_device_is_sampled_as_far_as_it_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in (LIBRARY | {"nvmlDeviceGetUtilizationRates": use_of}).items():
        monkeypatch.setattr(pynvml, name, function)
    names = sampled(tmp_path / "system.jsonl")
    assert {name.removeprefix("system.") for name in names if "gpu" in name} == {
        "gpu_0_memory_usage_megabytes",
        "gpu_0_memory_usage_percentage",
        "gpu_0_utilization_percentage",
        "gpu_1_memory_usage_megabytes",
        "gpu_1_memory_usage_percentage",
    }
    sampler = system.Sampler(tmp_path / "other.jsonl", os.getpid())
    sampler.stop()
    values = sampler.sample()
    assert (values["gpu_0_memory_usage_megabytes"], values["gpu_0_memory_usage_percentage"]) == (3000, 25)
    assert values["gpu_0_utilization_percentage"] == 40


def test_a_resumed_run_continues_the_numbers_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "system.jsonl"
    assert "system.process_memory_megabytes" in sampled(path)
    numbers = [entry["seq"] for entry in JournalReader(path)]
    path.write_bytes(path.read_bytes() + b'{"seq": ')
    sampled(path)
    found = [entry["seq"] for entry in JournalReader(path)]
    assert found[: len(numbers)] == numbers == list(range(len(numbers)))
    assert found[len(numbers) :] == [len(numbers) + 1 + i for i in range(len(found) - len(numbers))]
    assert len(found) > len(numbers)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false"), ("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "often")],
)
def test_nothing_is_sampled_where_the_user_says_so_or_the_interval_is_no_number(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert system.start(tmp_path / "system.jsonl", os.getpid()) is None
    assert not list(tmp_path.glob("*.jsonl"))


def test_nothing_is_sampled_of_a_process_that_has_ended(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert system.start(tmp_path / "system.jsonl", ended.pid) is None

"""System metrics of a run, sampled in the uploader process so that they cost the measured process nothing.

They are written to ``system.jsonl`` beside the journal, in the journal's format, and delivered like the
journal, under the names of MLflow's own monitor. ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL`` (seconds,
default 1) and ``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false`` have their usual meaning.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import IO, Any

import psutil

from dpexp.record.journal.durable import private_opener
from dpexp.record.journal.journal import encode_line
from dpexp.record.journal.reader import JournalReader


class Sampler:
    """A thread that samples the machine and one process at an interval into a file."""

    def __init__(self, path: Path, pid: int) -> None:
        self._path = path
        self._process = psutil.Process(pid)
        self._interval_s = float(os.environ.get("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL") or 1.0)
        self._stopped = threading.Event()
        self._network = psutil.net_io_counters()
        self._gpus = _gpu_handles()
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True, name="system metrics")
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample and end the thread."""
        self._stopped.set()
        self._thread.join()

    def _sample_until_stopped(self) -> None:
        psutil.cpu_percent()  # the first call only starts the clock
        with (
            contextlib.suppress(OSError, psutil.Error),
            open(self._path, "ab", 0, opener=private_opener) as file,
        ):
            number, stopped = _continue(self._path, file), False
            while not stopped:
                file.write(encode_line(self._entry(number)))
                number += 1
                stopped = self._stopped.wait(self._interval_s)
            file.write(encode_line(self._entry(number)))

    def _entry(self, number: int) -> dict[str, Any]:
        values = {f"system.{name}": value for name, value in self.sample().items()}
        return {
            "seq": number,
            "at": time.time_ns() // 1_000_000,
            "extend": {name: [value] for name, value in values.items()},
            "from": dict.fromkeys(values, number),
        }

    def sample(self) -> dict[str, float]:
        """The current values under MLflow's names; ``process_…`` are those of the run's own process."""
        memory, disk, network = psutil.virtual_memory(), psutil.disk_usage("/"), psutil.net_io_counters()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (network.bytes_recv - self._network.bytes_recv) / 1e6,
            "network_transmit_megabytes": (network.bytes_sent - self._network.bytes_sent) / 1e6,
        }
        with contextlib.suppress(psutil.Error):  # it has ended: the machine's values remain
            values["process_cpu_percentage"] = self._process.cpu_percent()
            values["process_memory_megabytes"] = self._process.memory_info().rss / 1e6
        for index, handle in enumerate(self._gpus):
            values |= _sample_gpu(index, handle)
        return values


def _continue(path: Path, file: IO[bytes]) -> int:
    """The number of the next sample: a resumed run continues the file. A line that was cut off is closed."""
    reader = JournalReader(path)
    for _ in reader:
        pass
    if not reader.incomplete_line():
        return reader.lines
    file.write(b"\n")
    return reader.lines + 1


def _gpu_handles() -> list[Any]:
    """The NVIDIA devices, where NVML's package and driver are installed."""
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return []


def _sample_gpu(index: int, handle: Any) -> dict[str, float]:
    import pynvml

    values: dict[str, float] = {}
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        values[f"gpu_{index}_memory_usage_megabytes"] = memory.used / 1e6
        values[f"gpu_{index}_memory_usage_percentage"] = 100 * memory.used / memory.total
        values[f"gpu_{index}_utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    return values


def start(path: Path, pid: int) -> Sampler | None:
    """Start sampling; None if the user disabled it, the interval is not a number, or it cannot start.

    That is where the process has ended, or no file or thread is left.
    """
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("false", "0"):
        return None
    with contextlib.suppress(ValueError, psutil.Error, OSError, RuntimeError):
        return Sampler(path, pid)
    return None

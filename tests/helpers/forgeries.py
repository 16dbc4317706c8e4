"""Forged Records: an honest one with one fact changed, as someone with an editor would."""

from __future__ import annotations

from collections.abc import Callable

from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record


def _shape(record: Record) -> None:
    record.shapes[1] = {**record.shapes[1], "outputs": [[99, 2]]}


def _device_map(record: Record) -> None:
    record.device_map[0] = {**record.device_map[0], "replicas": []}


def _fewer_steps(record: Record) -> None:
    for values in record.steps.values():
        del values[-10:]
    summarize(record)


def _faster(record: Record) -> None:
    """The summary alone: the figure that lists and reports show first."""
    record.summary["step_ms"] = {**record.summary["step_ms"], "median": 0.001}


def _slower(record: Record) -> None:
    """Steps that take longer together than the run did."""
    record.steps["time_ms"] = [1000 * ms for ms in record.steps["time_ms"]]
    summarize(record)


def _config(record: Record) -> None:
    record.config = {**record.config, "lr": 0.5}


RATES = {"median": 2e9, "iqr": 1e8, "min": 1e9, "max": 3e9, "n": 9}


FORGERIES: dict[str, Callable[[Record], object]] = {
    "execution": lambda record: setattr(record, "execution", "real"),
    "strategy": lambda record: setattr(record, "strategy", "ddp"),
    "status": lambda record: setattr(record, "status", "failed"),
    "config": _config,
    "verified, though its error is large": lambda record: record.verification.update(gradient_error=0.3),
    "verified, without an error": lambda record: record.verification.update(output_error=None),
    "not verified": lambda record: record.verification.update(checked=False, passed=None),
    "failed verification": lambda record: record.verification.update(passed=False),
    "verified in another type": lambda record: record.verification.update(dtype="float32"),
    "data": lambda record: record.data.update(sha256="f" * 64),
    "devices": lambda record: record.devices.update(used=["cuda:0", "cuda:1"]),
    "output device": lambda record: record.devices.update(output="cpu:1"),
    "shapes": _shape,
    "device map": _device_map,
    "rows of the steps": lambda record: record.steps.update(samples=[30] * 100),
    "fewer steps": _fewer_steps,
    "phases": lambda record: record.phases.pop("replicate"),
    "weights": lambda record: record.digest.update(weights="0" * 64),
    "losses": lambda record: record.steps.update(loss=[0.0] * 100),
    "a link of virtual devices": lambda record: record.work.update(link={"bytes": 9, "bytes_per_s": RATES}),
    "a faster summary": _faster,
    "steps longer than the run": _slower,
}
"""{what is forged: how}"""

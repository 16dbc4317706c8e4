"""Earlier: the metrics that version 1 of the content had, by which MLflow runs of then are checked.

A run that is delivered again is replaced by one with the content of today. A sweep, which is the parent of
others, keeps its MLflow run: what stands there of version 1 is written with the values of today.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dpexp.record.figures.figure import At
from dpexp.record.figures.registry import figures
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.tracking.content import content

_HEADLINES = ("step_ms", "bytes_moved", "peak_MB", "max_error")
_ALWAYS = ("step_ms", "samples_per_s", "phases_ms", "phase_coverage", "missing_steps", "nonfinite")
"""The keys of a summary that every delivery wrote; an MLflow run may lack the others."""


def has_version_1(tags: Mapping[str, str]) -> bool:
    """Whether an MLflow run with these tags has the content of version 1."""
    return content.VERSION_TAG not in tags


def expected_metrics(record: Record) -> dict[str, dict[int, float]]:
    """As ``content.expected_metrics``."""
    by_step = {
        key: {step: value for step, value in enumerate(values) if _is_number(value)}
        for key, values in content.series(record).items()
    }
    single = summary_metrics(RecordView(record))
    expected = {key: points for key, points in by_step.items() if points}
    expected |= {key: {0: value} for key, value in single.items()}
    return {
        key: {step: content.stored_value(value) for step, value in points.items()}
        for key, points in expected.items()
    }


def is_single(key: str) -> bool:
    """As ``content.is_single``."""
    return key in _HEADLINES or key.startswith("summary/")


def may_lack(key: str) -> bool:
    """As ``content.may_lack``."""
    kind, _, name = key.partition("/")
    return key in _HEADLINES or (kind == "summary" and name.partition("/")[0] not in _ALWAYS)


def is_own_metric(record: Record, key: str) -> bool:
    """Whether version 1 wrote this metric; others are the user's."""
    kind, _, name = key.partition("/")
    if kind == "summary":
        registered = (figure.name for figure in figures(At.SUMMARY))
        own = (*registered, "bytes_moved", "peak_memory", "verification", *record.summary)
        return name.partition("/")[0] in map(content.valid_key, own)
    return key in _HEADLINES or content.is_own_metric(record, key)


def summary_metrics(view: RecordView) -> dict[str, float]:
    """Every number of the summary under its path, as ``summary/step_ms/median``, and four columns."""
    record, (step_ms, *others) = view.record, _HEADLINES
    more = {"bytes_moved": view.bytes_moved, "peak_memory": record.memory, "verification": view.errors}
    columns = {figure.name: figure for figure in figures(At.COLUMN)}
    known = {step_ms: columns[step_ms].rounded(view), **{name: columns[name].number(view) for name in others}}
    known["max_error"] = columns["max_error"].rounded(view)
    single = {name: value for name, value in known.items() if value is not None}
    return dict(_numbers("summary", record.summary | more)) | single


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{path}/{key}", item)
    elif _is_number(value) and not isinstance(value, bool):
        yield content.valid_key(path), float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)

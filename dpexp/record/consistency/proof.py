"""Proof: the errors of a verification against their tolerance, and that against the constants.

A further comparison that a Record holds is one more row of ``SECTIONS``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpexp.record.consistency.tolerances import TOLERANCES
from dpexp.record.record import Record, Row

_EPSILON = 2.0**-23
"""That of float32: what may be added where a single device has no error."""
_SINGLE = "single_"
"""Before the error of a single device that computes as the run does."""


@dataclass(frozen=True)
class Section:
    """A dict of a Record with errors (each ``…_error`` of it), and the keys of their limit and type."""

    path: tuple[str, ...]
    limit: tuple[str, ...]
    dtype: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)


SECTIONS = (Section(("verification",), ("verification", "tolerance"), ("verification", "dtype")),)


def _at(record: Record, path: tuple[str, ...]) -> object:
    """What stands at these keys; None where one is absent."""
    found: object = record.to_dict()
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _errors(record: Record) -> Iterator[str]:
    """Every error that passed is at most the tolerance, which is at most what rounding may be."""
    if not (record.verification.get("checked") and record.verification.get("passed")):
        return
    for section in SECTIONS:
        found, limit, dtype = (_at(record, path) for path in (section.path, section.limit, section.dtype))
        if not isinstance(found, dict):
            continue
        limit_name = ".".join(section.limit)
        allowed = TOLERANCES.get(str(dtype))
        if allowed is None:
            yield f"{'.'.join(section.dtype)} is {dtype}, in which nothing is compared"
        elif not isinstance(limit, float | int) or not 0 <= limit <= allowed.most:
            yield f"{limit_name} is {limit}, not at most {allowed.most}, the largest in {dtype}"
        elif allowed.usual is not None and limit > allowed.usual and not record.verification.get("note"):
            yield f"{limit_name} is {limit}, not {allowed.usual}, and no note says what rounding was measured"
        else:
            yield from _larger(section.name, found, limit)


def _larger(name: str, section: Row, limit: float) -> Iterator[str]:
    for key in (key for key in section if key.endswith("_error")):
        error = section[key]
        if error is None and key == "output_error":
            yield f"{name} passed without an {key}"
        elif error is not None and not 0 <= error <= limit:
            yield f"{name}.{key} is {error}, not at most {limit}, but it passed"


def _worst(record: Record) -> Iterator[str]:
    """The largest error is the one of its kind, and of all."""
    found = record.verification
    worst = found.get("worst")
    if not worst or not found.get("passed"):
        return
    errors = {key: error for key, error in found.items() if key.endswith("_error") and error is not None}
    kind = worst["kind"]
    of_kind = errors.get(f"{kind}_error", errors.get(f"{kind.removesuffix('s')}_error"))
    if worst["error"] != of_kind or worst["error"] != max(errors.values()):
        yield f"verification.worst.error is {worst['error']} of {kind}, but its errors are {errors}"
    if "limit" in worst and not worst["error"] <= worst["limit"] <= found.get("tolerance", math.inf):
        limit, tolerance = worst.get("limit"), found.get("tolerance")
        yield f"verification.worst.limit is {limit}, of error {worst['error']} and tolerance {tolerance}"
    if not 1 <= worst["step"] <= found.get("steps", math.inf):
        yield f"verification.worst.step is {worst['step']}, but verification.steps is {found.get('steps')}"


def _rounding(record: Record) -> Iterator[str]:
    """A run in a short type is at most twice as far from float64 as a single device that computes so."""
    found, config = record.verification.get("rounding"), record.config
    if not found or not record.verification.get("passed"):
        return
    is_plain = not config.get("autocast") and not config.get("compile")
    if is_plain and config.get("dtype") in ("float32", "float64"):
        yield "verification.rounding is measured, but its config has no short type, autocast or compiler"
    for key in ("dtype", "autocast", "compile"):
        if key in found and key in config and found[key] != config[key]:
            yield f"verification.rounding.{key} is {found[key]!r}, but its config says {config[key]!r}"
    if not found.get("passed"):
        yield "verification.rounding.passed is false, but verification.passed is true"
    for key in ("output_error", "gradient_error"):
        error, single = found.get(key), found.get(f"{_SINGLE}{key}")
        if error is not None and (single is None or not 0 <= error <= 2 * single + _EPSILON):
            yield (
                f"verification.rounding.{key} is {error}, not at most twice {_SINGLE}{key}, which is {single}"
            )


def _verdict(record: Record) -> Iterator[str]:
    """A run that was verified and did not pass has failed."""
    found = record.verification
    if not found.get("checked"):
        return
    if record.status == "finished" and found.get("passed") is not True:
        yield f"verification.passed is {found.get('passed')}, but its status is finished"
    if found.get("passed") and found.get("cause"):
        yield "verification.cause says why it failed, but it passed"
    if found.get("passed") and found.get("steps") == 0:
        yield "verification.steps is 0, but it passed"


RULES = (_errors, _worst, _rounding, _verdict)

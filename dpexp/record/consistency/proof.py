"""Proof: the errors of a verification against their tolerance, and that against the constants.

A further comparison that a Record holds is one more row of ``SECTIONS``.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dpexp.record.consistency.tolerances import MOST, SHORT, USUAL
from dpexp.record.record import Record, Row

EVALUATIONS = 2
"""Comparisons in eval mode have the numbers of the steps that would follow."""

_EPSILON = 2.0**-23
"""That of float32: what may be added where a single device has no error."""
_SINGLE = "single_"
"""Before the error of a single device that computes as the run does."""
_NUMBER = r"(\d\.\de[-+]\d+)"
_MEASURED = re.compile(f"differs from itself by {_NUMBER}, and the limit is (?:cut to )?{_NUMBER}")
_MARGIN, _TWO_DIGITS = 10, 1.06
"""A limit is so many times what is measured; a number of two digits may stand for one so much larger."""
_ROUNDED = 1 + 1e-12
"""A largest limit was divided and multiplied by norms."""


@dataclass(frozen=True)
class Section:
    """A dict of a Record with errors (each ``…_error`` of it), their ``tolerance`` and their ``dtype``.

    ``is_own``: it is of the run's own steps, in the narrowest type that the run computes in.
    """

    path: tuple[str, ...]
    is_own: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def of(self, record: Record) -> Row:
        """What the Record has of it; empty where it is absent."""
        found: Any = record.to_dict()
        for key in self.path:
            found = found.get(key) or {}
        return found if isinstance(found, dict) else {}

    def allowed(self, record: Record, dtype: str) -> float | None:
        """The usual tolerance of the comparison; None for a type in which nothing is compared."""
        narrowest = record.config.get("autocast") or dtype
        on_gpu = any(device.startswith("cuda") for device in record.devices["used"])
        if self.is_own and (narrowest not in _EXACT or (narrowest == "float32" and on_gpu)):
            return SHORT
        return USUAL.get(dtype)

    def may_have(self, record: Record, dtype: str, note: str) -> bool:
        """Whether the comparison is in this type: a run's own steps in the run's, others in float64.

        Some devices have no float64, and of some models the note says that they do not compute in it.
        """
        if self.is_own:
            return dtype == record.config.get("dtype")
        has_mps = dtype == "float32" and any(each.startswith("mps") for each in record.devices["used"])
        return dtype == "float64" or has_mps or f"compared in torch.{dtype}" in note

    def is_placed_only(self, record: Record, found: Row) -> bool:
        """Whether there was no step of the warm-up to compare, and the model as it was placed is all.

        Or the run ended inside the first of them: before it measured a step, unless it had resumed.
        """
        is_first, config = self.path[-1] == "first_steps", record.config
        has_ended = record.status != "finished" and (not record.steps["time_ms"] or config.get("resume"))
        is_empty = is_first and bool(config.get("warmup") == 0 or has_ended)
        return is_empty and found.get("steps") == 0 and found.get("parameter_error") is not None


_EXACT = ("float64", "float32")
SECTIONS = (
    Section(("verification",)),
    Section(("verification", "first_steps"), is_own=True),
    Section(("verification", "last_step"), is_own=True),
)


def _errors(record: Record) -> Iterator[str]:
    """Every error that passed is at most the tolerance, which is at most what rounding may be."""
    for section in SECTIONS if record.verification.get("checked") else ():
        found = section.of(record)
        limit, dtype = found.get("tolerance"), str(found.get("dtype"))
        if not found.get("passed"):
            continue
        allowed = section.allowed(record, dtype)
        if allowed is None:
            yield f"{section.name}.dtype is {dtype}, in which nothing is compared"
        elif not section.may_have(record, dtype, _note(found)):
            yield f"{section.name}.dtype is {dtype}, and neither the run nor a note says why"
        elif not isinstance(limit, float | int) or not 0 <= limit <= MOST * _ROUNDED:
            yield f"{section.name}.tolerance is {limit}, not at most {MOST}, the largest"
        elif not section.is_own and not limit <= max(allowed, _measured(found)):
            yield f"{section.name}.tolerance is {limit}, and no note says that so much rounding was measured"
        else:
            needed = "parameter_error" if section.is_placed_only(record, found) else "output_error"
            yield from _larger(section.name, found, limit, needed)


def _measured(section: Row) -> float:
    """The largest tolerance that the note derives from a measured rounding; 0.0 without any."""
    found = ((float(rounding), float(limit)) for rounding, limit in _MEASURED.findall(_note(section)))
    limits = (limit for rounding, limit in found if limit <= _MARGIN * _TWO_DIGITS**2 * rounding)
    return _TWO_DIGITS * max(limits, default=0.0)


def _note(section: Row) -> str:
    return str(section.get("note") or "")


def _larger(name: str, section: Row, limit: float, needed: str) -> Iterator[str]:
    for key in (key for key in section if key.endswith("_error")):
        error = section[key]
        if error is None and key == needed:
            yield f"{name} passed without an {key}"
        elif error is not None and not 0 <= error <= limit:
            yield f"{name}.{key} is {error}, not at most {limit}, but it passed"


def _worst(record: Record) -> Iterator[str]:
    """The largest error of a section is the one of its kind, and of all."""
    for section in SECTIONS:
        found = section.of(record)
        worst = found.get("worst")
        if not worst or not found.get("passed"):
            continue
        errors = {key: error for key, error in found.items() if key.endswith("_error") and error is not None}
        kind, name = worst["kind"], f"{section.name}.worst"
        of_kind = errors.get(f"{kind}_error", errors.get(f"{kind.removesuffix('s')}_error"))
        if worst["error"] != of_kind or worst["error"] != max(errors.values()):
            yield f"{name}.error is {worst['error']} of {kind}, but its errors are {errors}"
        if "limit" in worst and not worst["error"] <= worst["limit"] <= found["tolerance"]:
            yield f"{name}.limit is {worst['limit']}, of error {worst['error']} and {found['tolerance']}"
        steps = math.inf if "not comparable" in _note(found) else found.get("steps", math.inf)
        evaluations = EVALUATIONS if kind == "outputs" and not section.is_own else 0
        first = 0 if kind == "parameters" and section.is_own else 1  # 0 is the model as it was placed
        if not first <= worst["step"] <= max(steps + evaluations, found.get("training_steps", 0)):
            yield f"{name}.step is {worst['step']}, but {section.name}.steps is {found.get('steps')}"


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
    for section in SECTIONS:
        of_section = section.of(record)
        is_none = of_section.get("steps") == 0 and not of_section.get("training_steps")
        if of_section.get("passed") and is_none and not section.is_placed_only(record, of_section):
            yield f"{section.name}.steps is 0, but it passed"
        if of_section.get("passed") is False and found.get("passed"):
            yield f"{section.name}.passed is false, but verification.passed is true"


RULES = (_errors, _worst, _rounding, _verdict)

"""The verification of a run as lines and a section of its report."""

from collections.abc import Sequence

from dpexp.config.words import listed, plural
from dpexp.record.record import Record, Row
from dpexp.report.section import Section

USUAL_LIMIT = 1e-12
"""The limit of a verification in float64."""


def verified(facts: Row) -> str:
    """Whether the run is verified, to which error where its limit is wider than usual, and but for what."""
    if not facts.get("checked"):
        return "not verified"
    if not facts["passed"]:
        return "NOT THE SAME"
    limit = facts["tolerance"]
    to = f" to {float(limit):.0e}" if limit and float(limit) > USUAL_LIMIT else ""
    but_for = f", but for {listed(facts['gaps'])}" if facts.get("gaps") else ""
    return f"verified{to}{but_for}"


def verification_lines(facts: Row) -> list[str]:
    """The errors to a single device, of copies and training steps, and what no verified step has reached."""
    lines = [f"errors to a single device: {_errors([facts])}"] if facts.get("checked") else []
    own = [row for name in ("first_steps", "last_step") if (row := facts.get(name))]
    if compared := [row for row in own if row["steps"]]:
        lines.append(f"training steps checked in {compared[0]['dtype']}: {_errors(compared)}")
    elif notes := [row["note"] for row in own if row["note"] and row["passed"] is None]:
        lines.append(f"training steps: {notes[0]}")
    return [*lines, unreached(facts)]


def _errors(rows: Sequence[Row]) -> str:
    """The largest errors of these comparisons: ``outputs 8.7e-17, gradients 5.8e-16; limit 1e-12``."""
    errors = [
        f"{kind} {max(found):.1e}"
        for kind, key in (("outputs", "output_error"), ("gradients", "gradient_error"))
        if (found := [float(row[key]) for row in rows if row.get(key) is not None])
    ]
    limits = [float(row["tolerance"]) for row in rows if row["tolerance"] is not None]
    limit = f"; limit {max(limits):.0e}" if limits else ""
    return f"{', '.join(errors) or 'none compared'}{limit}"


def unreached(facts: Row) -> str:
    """What no verified step has reached, in one line; empty where that is nothing."""
    names = (facts.get("unreached") or {"parameters": []})["parameters"]
    return f"not verified: parameters {listed(names)}, which never have a gradient" if names else ""


def verification_section(record: Record, full: bool) -> Section | None:
    """A short report has it only where it says more than the errors: it failed, was left out, has a note."""
    facts = record.verification
    note = facts.get("note")
    if record.status == "planned":
        return None
    if not facts.get("checked"):
        return Section("Not verified", (note or "nothing was compared with a single device",), "warn")
    if facts["passed"] and not full:
        return Section("Verified", (note,), "good") if note else None
    steps = f"{plural(facts['steps'], 'step')} in " if facts.get("steps") else ""
    line = f"compared with a single device, {steps}{facts['dtype']}; relative errors: {_errors([facts])}"
    lines = tuple(filter(None, (line, _worst(facts), facts.get("cause"), note)))
    if facts["passed"]:
        return Section("Verified", lines, "good")
    return Section("NOT THE SAME as a single device", lines, "bad")


def _worst(facts: Row) -> str:
    worst = facts.get("worst")
    if not worst or not worst["error"]:
        return ""
    where = f" of {worst['tensor']}" if worst["tensor"] else ""
    return f"the largest error is {worst['error']:.1e}: {worst['kind']}{where} in step {worst['step']}"

"""The verification of a run as lines and a section of its report."""

from dpexp.config.alike import listed
from dpexp.config.ranges import plural
from dpexp.record.record import Record, Row
from dpexp.report.section import Section

USUAL_LIMIT = 1e-12
"""The limit of a verification in float64."""
_ERRORS = {"outputs": "output_error", "gradients": "gradient_error"}


def verified(facts: Row) -> str:
    """Whether the run is verified, and to which error where its limit is wider than usual."""
    if not facts.get("checked"):
        return "not verified"
    if not facts["passed"]:
        return "NOT THE SAME"
    limit = float(facts["tolerance"])
    return f"verified to {limit:.0e}" if limit > USUAL_LIMIT else "verified"


def errors_line(facts: Row) -> str:
    """The errors to a single device; empty where nothing was checked."""
    if not facts.get("checked"):
        return ""
    errors = [
        f"{kind} {float(facts[key]):.1e}" for kind, key in _ERRORS.items() if facts.get(key) is not None
    ]
    limit = f"limit {float(facts['tolerance']):.0e}"
    return f"errors to a single device: {', '.join(errors) or 'none compared'}; {limit}"


def own_steps(facts: Row) -> str:
    """The steps of the run itself that were compared, in one line; empty for a Record without them."""
    rows = [row for name in ("first_steps", "last_step") if (row := facts.get(name))]
    compared = [row for row in rows if row["steps"]]
    if not compared:
        notes = [row["note"] for row in rows if row["note"] and row["passed"] is None]
        return f"its own steps: {notes[0]}" if notes else ""
    errors = [
        f"{kind} {max(found):.1e}"
        for kind, key in _ERRORS.items()
        if (found := [float(row[key]) for row in compared if row[key] is not None])
    ]
    limit = max(float(row["tolerance"]) for row in compared)
    return f"its own steps, in {compared[0]['dtype']}: {', '.join(errors)}; limit {limit:.0e}"


def unreached(facts: Row) -> str:
    """What no verified step has reached, in one line; empty where that is nothing."""
    found = facts.get("unreached") or {"modules": [], "parameters": []}
    modules = found["modules"]
    apart = [each for each in found["parameters"] if not any(each.startswith(f"{name}.") for name in modules)]
    texts = [f"modules {listed(modules)}, which are never called"] if modules else []
    texts += [f"parameters {listed(apart)}, which never have a gradient"] if apart else []
    return f"not verified: {'; '.join(texts)}" if texts else ""


def verification_section(record: Record, full: bool) -> Section | None:
    """A short report has it only where it says more than the errors: it failed, was left out, has a note."""
    facts = record.verification
    note = facts.get("note")
    if not facts.get("checked"):
        return Section("Not verified", (note or "nothing was compared with a single device",), "warn")
    if facts["passed"] and not full:
        return Section("Verified", (note,), "good") if note else None
    errors = [
        f"{kind} differ by {float(facts[key]):.1e}" if facts[key] else f"{kind} do not differ"
        for kind, key in _ERRORS.items()
        if facts.get(key) is not None
    ]
    steps = f" in {plural(facts['steps'], 'step')}" if facts.get("steps") else ""
    line = (
        f"{' and '.join(errors) or 'compared'} from a single device{steps} "
        f"({facts['dtype']}, relative; limit {float(facts['tolerance']):.0e})"
    )
    lines = tuple(filter(None, (line, _worst(facts), facts.get("cause"), note)))
    if facts["passed"]:
        return Section("Verified", lines, "good")
    return Section("NOT THE SAME as a single device", lines, "bad")


def _worst(facts: Row) -> str:
    """The largest error of the verification."""
    worst = facts.get("worst")
    if not worst or not worst["error"]:
        return ""
    where = f" of {worst['tensor']}" if worst["tensor"] else ""
    return f"the largest error is {worst['error']:.1e}: {worst['kind']}{where} in step {worst['step']}"

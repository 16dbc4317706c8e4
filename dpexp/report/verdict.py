"""The head of a run's report: a verdict in one line, then five lines of figures."""

from collections.abc import Callable, Sequence

from dpexp.config.alike import listed
from dpexp.config.errors import shortened
from dpexp.config.ranges import plural
from dpexp.record.figures import At, Figure
from dpexp.record.figures import figures as registered
from dpexp.record.journal import SWEEP_STRATEGY
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.report import layout, units
from dpexp.report.findings import Finding
from dpexp.report.noise import held, noise_text

USUAL_LIMIT = 1e-12
"""The limit of a verification in float64."""
EXECUTIONS = {
    "real": "REAL devices",
    "virtual": "VIRTUAL devices",
    "passthrough": "PASSTHROUGH: the whole model ran on the host",
}


def verdict(view: RecordView, findings: Sequence[Finding]) -> str:
    """How the run was executed, whether it is verified, its step time, and the first of its findings.

    Of a run that cannot be judged: why, and its rate by wall clock. Of one that can, although interruptions
    hold most of its time: how many they are.
    """
    record, usual = view.record, view.usual
    if record.error:
        error = ": ".join(filter(None, (record.error.get("type"), record.error.get("message"))))
        return f"{record.status.upper()}: {shortened(error)}"
    if record.status != "finished":
        return f"{record.status.upper()}: the report shows what was recorded until then"
    execution = EXECUTIONS.get(record.execution, record.execution or "not started")
    parts = [f"{execution}, {_verified(record.verification)}"]
    if view.noise is not None:
        wall = view.wall_samples_per_s
        parts.append(f"cannot be judged: {noise_text(view.noise)}")
        return "; ".join([*parts, *([f"{units.number(wall)} samples/s by wall clock"] if wall else [])])
    if usual is not None:
        parts.append(f"{units.ms(usual.median)} a step, IQR {units.ms(usual.iqr)}, n {usual.n}")
    if view.interruptions is not None:
        parts.append(f"interrupted: {held(view.interruptions)}")
    return "; ".join([*parts, *(finding.name for finding in findings[:1])])


def _verified(facts: Row) -> str:
    """Whether the run is verified, and to which error where its limit is wider than usual."""
    if not facts.get("checked"):
        return "not verified"
    if not facts["passed"]:
        return "NOT THE SAME"
    limit = float(facts["tolerance"])
    return f"verified to {limit:.0e}" if limit > USUAL_LIMIT else "verified"


def verdict_figures(view: RecordView) -> list[str]:
    """Layout, work, then figures of the registry: which steps the median is of, rates and loss, errors."""
    parts: dict[str, list[str]] = {}
    for figure in registered(At.TERMINAL):
        line = _LINES.get(figure.name, RATE)
        if text := _TEXTS.get(figure.name, _plain)(view, figure):
            parts.setdefault(line, []).append(text)
    found = ["; ".join(parts.get(line, ())) for line in (_STEPS, RATE, ERRORS)]
    facts = view.record.verification
    lines = (_layout(view.record), _work(view.record), *found, own_steps(facts), unreached(facts))
    return [line for line in lines if line]


def remarks(record: Record) -> list[str]:
    """What a reader must know about this run in particular; most runs have none."""
    found = []
    if record.execution == "passthrough":
        found.append("to see replicas on this machine, emulate devices: --virtual 2")
    if emulation := layout.emulation(record.strategy, record.execution, record.devices):
        found.append(emulation)
    if record.damage:
        found.append(f"DAMAGED: {'; '.join(record.damage)}")
    return found


def _layout(record: Record) -> str:
    used = record.devices["used"]
    if record.strategy == SWEEP_STRATEGY:
        return f"strategy {record.strategy}"
    if not used:
        return f"strategy {record.strategy}; devices not recorded"
    output = record.devices["output"] or used[0]
    return f"strategy {record.strategy} on {layout.stage(record)}: {units.span(used)}; results on {output}"


def _work(record: Record) -> str:
    get = record.config.get
    forward = ", forward only" if get("eval") else ""
    return (
        f"model {get('model', '?')}, data {get('data', '?')}, batches of {get('batch_size', '?')}, "
        f"{get('dtype', '?')}, seed {get('seed', '?')}{forward}"
    )


def _plain(view: RecordView, figure: Figure) -> str:
    """``energy a step 3 J``; nothing where it is not known."""
    number = figure.number(view)
    return "" if number is None else f"{figure.title} {units.text(number, figure.unit)}"


def _steps(view: RecordView, figure: Figure) -> str:
    """Of which steps the median is, and which are left out of it: the verdict has their time."""
    usual = view.usual
    if usual is None:
        return ""
    others = {rows: len(times) for rows, times in view.by_rows.items() if rows != usual.rows}
    sizes = listed((f"{count} of {plural(rows, 'row')}" for rows, count in others.items()), 3)
    left_out = f"; left out: {sizes} ({_why_left_out(view.record, set(others))})" if others else ""
    return f"median of {plural(usual.n, 'step')} of {plural(usual.rows, 'row')}{left_out}"


def _why_left_out(record: Record, rows: set[int]) -> str:
    """Why steps of so many rows are not in the median of the others."""
    size, samples = record.config.get("batch_size"), record.data.get("samples")
    if size and samples and rows == {samples % size}:
        return "last of each epoch"
    return "another size"


def _flops_per_s(view: RecordView, figure: Figure) -> str:
    """Only where the share of the peak is known: else it is not of arithmetic. Built on the step time."""
    rate = figure.number(view)
    is_shown = view.noise is None and view.peak_share is not None and rate is not None
    return units.text(rate, figure.unit) if is_shown and rate is not None else ""


def _samples_per_s(view: RecordView, figure: Figure) -> str:
    where = " on this CPU" if view.record.execution == "virtual" else ""
    rate = figure.number(view)
    return f"{units.number(rate)} {figure.title}{where}" if rate and view.noise is None else ""


def _wall(view: RecordView, figure: Figure) -> str:
    """Where the run cannot be judged, the verdict has it."""
    rate = figure.number(view)
    return f"{units.number(rate)} {figure.title}" if rate and view.noise is None else ""


def _loss(view: RecordView, figure: Figure) -> str:
    return f"loss {view.losses[0]:.4g} at first, {view.losses[-1]:.4g} at last" if view.losses else ""


def _metrics(view: RecordView, figure: Figure) -> str:
    return "; ".join(f"{name} {value:.4g}" for name, value in view.metrics.items())


def _errors(view: RecordView, figure: Figure) -> str:
    facts = view.record.verification
    if not facts.get("checked"):
        return ""
    kinds = (("outputs", "output_error"), ("gradients", "gradient_error"))
    errors = [f"{kind} {view.errors[key]:.1e}" for kind, key in kinds if key in view.errors]
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
        for kind, key in (("outputs", "output_error"), ("gradients", "gradient_error"))
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


_STEPS, RATE, ERRORS = "steps", "rate", "errors"
"""The lines of figures; a figure that ``_LINES`` does not name stands beside the rate."""
_LINES = {"step_ms": _STEPS, "verification": ERRORS}
_TEXTS: dict[str, Callable[[RecordView, Figure], str]] = {
    "step_ms": _steps,
    "samples_per_s": _samples_per_s,
    "wall_samples_per_s": _wall,
    "loss": _loss,
    "metrics": _metrics,
    "flops_per_s": _flops_per_s,
    "verification": _errors,
}
"""How figures read that are more than a number with its title."""

"""The head of a run's report: a verdict in one line, then five lines of figures."""

from collections.abc import Iterable

from dpexp.config.errors import shortened
from dpexp.record.figures.step_times import usual_steps
from dpexp.record.record import Record, Row, present
from dpexp.report import units
from dpexp.report.analysis import layout, work
from dpexp.report.findings.rules import headlines

MOST_DAMAGE = 3
"""The most reports of damage; `runs.py check` prints all."""
USUAL_LIMIT = 1e-12
"""The limit of a verification in float64."""
EXECUTIONS = {
    "real": "REAL devices",
    "virtual": "VIRTUAL devices",
    "passthrough": "PASSTHROUGH: the whole model ran on the host",
}


def verdict(record: Record, findings: Iterable[str]) -> str:
    """How the run was executed, whether it is verified, its step time, and the first of its findings."""
    if record.error:
        error = ": ".join(filter(None, (record.error.get("type"), record.error.get("message"))))
        return f"{record.status.upper()}: {shortened(error)}"
    if record.status != "finished":
        return f"{record.status.upper()}: the report shows what was recorded until then"
    usual = usual_steps(record)
    execution = EXECUTIONS.get(record.execution, record.execution or "not started")
    parts = [f"{execution}, {_verified(record.verification)}"]
    if usual is not None:
        parts.append(f"{units.ms(usual.median)} a step, IQR {units.ms(usual.iqr)}, n {usual.n}")
    return "; ".join([*parts, *headlines(findings)[:1]])


def _verified(facts: Row) -> str:
    """Whether the run is verified, and to which error where its limit is wider than usual."""
    if not facts.get("checked"):
        return "not verified"
    if not facts["passed"]:
        return "NOT THE SAME"
    limit = float(facts["tolerance"])
    return f"verified to {limit:.0e}" if limit > USUAL_LIMIT else "verified"


def figures(record: Record) -> list[str]:
    """Layout, work, step time, rate and loss, errors: a line each."""
    found = [_layout(record), _work(record), _step_time(record), _rate(record), _errors(record)]
    return [line for line in found if line]


def remarks(record: Record) -> list[str]:
    """What a reader must know about this run in particular; most runs have none."""
    found = []
    if record.execution == "passthrough":
        found.append("to see replicas on this machine, emulate devices: --virtual 2")
    if emulation := layout.emulation(record.strategy, record.execution, record.devices):
        found.append(emulation)
    if record.damage:
        others = len(record.damage) - MOST_DAMAGE
        more = f"; and {others} more" if others > 0 else ""
        found.append(f"DAMAGED: {'; '.join(record.damage[-MOST_DAMAGE:])}{more}")
    return found


def _layout(record: Record) -> str:
    used = record.devices["used"]
    names = f": {units.span(used)}" if used else ""
    output = record.devices["output"] or (used or ["cpu"])[0]
    return f"strategy {record.strategy} on {layout.stage(record)}{names}; results on {output}"


def _work(record: Record) -> str:
    get = record.config.get
    forward = ", forward only" if get("eval") else ""
    return (
        f"model {get('model', '?')}, data {get('data', '?')}, batches of {get('batch_size', '?')}, "
        f"{get('dtype', '?')}, seed {get('seed', '?')}{forward}"
    )


def _step_time(record: Record) -> str:
    usual = usual_steps(record)
    if usual is None:
        return ""
    rate = work.rate(record, ", ") if "peak_share" in record.summary else ""  # else it is not of arithmetic
    share = f" ({units.percent(usual.iqr / usual.median)})" if usual.median else ""
    return (
        f"{units.ms(usual.median)} median of {usual.n} steps of {usual.rows} rows, "
        f"IQR {units.ms(usual.iqr)}{share}{rate}"
    )


def _rate(record: Record) -> str:
    usual, losses = usual_steps(record), present(record.steps["loss"])
    parts = []
    if usual is not None and usual.samples_per_s:
        where = " on this CPU" if record.execution == "virtual" else ""
        parts.append(f"{units.number(usual.samples_per_s)} samples/s{where}")
    if losses:
        parts.append(f"loss {losses[0]:.4g} at first, {losses[-1]:.4g} at last")
    parts += [
        f"{name} {kept[-1]:.4g}" for name, values in record.metrics.items() if (kept := present(values))
    ]
    return "; ".join(parts)


def _errors(record: Record) -> str:
    facts = record.verification
    if not facts.get("checked"):
        return ""
    kinds = (("outputs", "output_error"), ("gradients", "gradient_error"))
    errors = [f"{kind} {float(facts[key]):.1e}" for kind, key in kinds if facts.get(key) is not None]
    limit = f"limit {float(facts['tolerance']):.0e}"
    return f"errors to a single device: {', '.join(errors) or 'none compared'}; {limit}"

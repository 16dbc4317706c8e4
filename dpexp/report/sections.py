"""What a run has to say, in the order in which a reader asks, whatever it is then written in.

The terminal summary, the note on the MLflow page and the notebook's display are three renderings of
the sections made here, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpexp.record import Record
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import Phase, phases
from dpexp.report.analysis.shapes import batches
from dpexp.report.analysis.statistics import usual_steps
from dpexp.report.command import command
from dpexp.report.findings import find

ROWS = 14
"""So many rows of a table at most; the rest is counted, and stands whole in MLflow's tables."""

EXECUTIONS = {
    "real": "REAL devices, nothing emulated",
    "virtual": "VIRTUAL devices, emulated on the CPU: shapes and results are true, times are this CPU's",
    "passthrough": "PASSTHROUGH: no device to split over, the model ran whole on the host",
    "planned": "PLANNED: nothing was run",
}


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``more`` counts the rows that were left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


@dataclass(frozen=True)
class Section:
    """One answer. ``mood`` is good, bad, warn or nothing; ``commands`` are lines to type."""

    title: str
    lines: tuple[str, ...] = ()
    mood: str = ""
    table: Table | None = None
    bars: tuple[Phase, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()


def sections(record: Record) -> list[Section]:
    """The sections in order; those that the Record has nothing for are left out."""
    sections = [
        _what(record),
        _verified(record),
        _shapes(record),
        _layout(record),
        _time(record),
        _phases(record),
        _findings(record),
        _further(record),
    ]
    return [part for part in sections if part is not None]


def _what(record: Record) -> Section:
    lines = [
        f"{EXECUTIONS.get(record.execution, record.execution or 'not started')}",
        *_hint(record),
        *_set_up(record),
        _machine(record),
    ]
    if record.error:
        lines.insert(0, f"{record.status.upper()}: {record.error['type']}: {record.error['message']}")
    elif record.status != "finished":
        lines.insert(0, f"{record.status.upper()}: this is what was recorded until then")
    if record.damage:
        lines.append(f"{len(record.damage)} damaged journal lines were left out: {record.damage[0]}")
    mood = {"finished": "warn" if record.execution == "passthrough" else "", "running": "warn"}
    title = f"Run {record.name} ({record.run_id})" if record.name else f"Run {record.run_id}"
    return Section(title, tuple(lines), mood.get(record.status, "bad"))


def _hint(record: Record) -> list[str]:
    if record.execution != "passthrough":
        return []
    return ["to see replicas on this machine, emulate devices: --virtual 2"]


def _set_up(record: Record) -> list[str]:
    config, devices = record.config, record.devices
    used = devices["used"] or ["cpu"]
    named = f": {units.span(used)}" if devices["used"] else ""
    return [
        f"strategy {record.strategy} on {layout.stage(record)}{named}; results on "
        f"{devices['output'] or used[0]}",
        f"model {config.get('model', '?')}, data {config.get('data', '?')}, "
        f"batches of {config.get('batch_size', '?')}, {config.get('dtype', '?')}, "
        f"seed {config.get('seed', '?')}{', forward only' if config.get('eval') else ''}",
    ]


def _machine(record: Record) -> str:
    env = record.environment
    chips = [
        str(one.get("name", one)) if isinstance(one, dict) else str(one)
        for one in env.get("accelerators") or []
    ]
    words = [
        str(env.get("host") or ""),
        str(env.get("cpu") or ""),
        f"{env['threads']} threads" if env.get("threads") else "",
        units.repeated(chips, ", "),
        f"torch {env['torch']}" if env.get("torch") else "",
    ]
    return "machine: " + (", ".join(word for word in words if word) or "not recorded")


def _verified(record: Record) -> Section:
    facts = record.verification
    if not facts.get("checked"):
        why = facts.get("note") or "nothing was compared with a single device"
        return Section("Not verified", (why,), "warn")
    title = "Verified" if facts["passed"] else "NOT THE SAME as a single device"
    errors = [
        f"{kind} differ by {facts[key]:.1e}" if facts[key] else f"{kind} do not differ"
        for kind, key in (("outputs", "output_error"), ("gradients", "gradient_error"))
        if facts.get(key) is not None
    ]
    lines = [
        f"{' and '.join(errors) or 'compared'} from a single device "
        f"({facts['dtype']}, relative; limit {facts['tolerance']:.0e})"
    ]
    if facts.get("note"):
        lines.append(facts["note"])
    return Section(title, tuple(lines), "good" if facts["passed"] else "bad")


def _shapes(record: Record) -> Section | None:
    groups = batches(record)
    if not groups:
        return None
    rows = []
    for group in groups:
        for call in group.calls:
            inputs, outputs = call.texts()
            rows.append((group.name, call.name, inputs, outputs, call.where))
    lines = tuple(f"{group.name}: {group.headline()}" for group in groups)
    columns = ("batch", "module", "inputs", "outputs", "where")
    return Section("Shapes", lines, table=_cut(columns, rows))


def _layout(record: Record) -> Section | None:
    if not record.device_map:
        return None
    moved = _moved(record)
    lines = [f"a step moves {moved}"] if moved else []
    if "cpu" in record.memory:
        lines.append(f"peak memory of the process: {units.size(record.memory['cpu'])}")
    measured = any(device != "cpu" for device in record.memory)
    columns = ("device", "holds", "parameters", *(("peak memory",) if measured else ()))
    rows: dict[tuple[str, ...], list[str]] = {}
    for place in layout.places(record):
        peak = (_peak(record, place.device),) if measured else ()
        rows.setdefault((_held(place), units.size(place.bytes), *peak), []).append(place.device)
    merged = [
        (units.span(devices), held, weight + " each" * (len(devices) > 1), *peak)
        for (held, weight, *peak), devices in rows.items()
    ]
    return Section("Device map", tuple(lines), table=_cut(columns, merged))


def _held(place: layout.Place) -> str:
    own = [name or "(model)" for name in place.own]
    held = own if len(own) <= 4 else [f"{len(own)} modules"]
    if place.copies:
        names = [name or "(model)" for name in place.copies]
        held.append("a copy of " + (", ".join(names) if len(names) <= 4 else f"{len(names)} modules"))
    return ", ".join(held) or "-"


def _peak(record: Record, device: str) -> str:
    return units.size(record.memory[device]) if device in record.memory and device != "cpu" else "-"


def _moved(record: Record) -> str:
    total: dict[str, int] = {}
    for move in layout.moves(record):
        total[move.what] = total.get(move.what, 0) + move.bytes
    return ", ".join(f"{units.size(count)} by {what}" for what, count in total.items())


def _time(record: Record) -> Section | None:
    usual = usual_steps(record)
    if usual is None:
        return None
    rate = record.summary.get("samples_per_s")
    lines = [
        f"{units.ms(usual.median)} median of {usual.n} steps of {usual.rows} rows, IQR {units.ms(usual.iqr)} "
        f"({units.percent(usual.iqr / usual.median) if usual.median else '-'}), "
        f"from {units.ms(usual.min)} to {units.ms(usual.max)}"
    ]
    if rate:
        lines.append(f"{units.number(rate)} samples/s over all {len(record.steps['time_ms'])} steps")
    losses = [loss for loss in record.steps["loss"] if loss is not None]
    if losses:
        lines.append(f"loss {losses[0]:.4g} at first, {losses[-1]:.4g} at last")
    lines += [f"{name} {values[-1]:.4g}" for name, values in record.metrics.items() if values]
    return Section("Time per step", tuple(lines))


def _phases(record: Record) -> Section | None:
    bars = tuple(phases(record))
    if not bars:
        return None
    coverage = record.summary.get("phase_coverage")
    line = f"share of a step, median of {max(bar.n for bar in bars)} steps timed phase by phase"
    if coverage is not None:
        line += f"; the phases cover {units.percent(coverage)} of it"
    return Section("Where a step goes", (line,), bars=bars)


def _findings(record: Record) -> Section | None:
    found = find(record)
    if not found:
        return None if record.status != "finished" else Section("Findings", ("none",))
    return Section("Findings", tuple(f"{one.text} {one.advice}" for one in found), "warn")


def _further(record: Record) -> Section:
    git = record.environment.get("git") or {}
    commit = str(git.get("commit") or "")[:10]
    lines = (
        (f"code: commit {commit}" + (", with uncommitted changes" if git.get("dirty") else ""),)
        if commit
        else ()
    )
    commands = (
        ("look in MLflow", "python scripts/ui.py"),
        ("show again", f"python scripts/runs.py show {record.run_id}"),
        ("compare", f"python scripts/report.py {record.run_id} RUN"),
        ("run again", command(record)),
        ("reproduce", f"python scripts/runs.py reproduce {record.run_id}"),
    )
    return Section("Look further", lines, commands=commands)


def _cut(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(columns, tuple(rows[:ROWS]), max(0, len(rows) - ROWS))

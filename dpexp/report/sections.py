"""The sections of a run's report, in a fixed order, independent of the format.

The terminal summary, the note on the MLflow page and the notebook's display render these sections, so
that they cannot disagree.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.config import STRATEGY_OPTIONS, ConfigError, RunConfig, options_with_role
from dpexp.config.errors import shortened
from dpexp.config.options import flag_name, option_fields
from dpexp.config.process import command as command_of
from dpexp.live import live_options
from dpexp.record import Record, Row, present, usual_steps
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import Phase, phases
from dpexp.report.analysis.shapes import batches
from dpexp.report.findings import apply_rules

ROWS = 14
"""The most rows of a table; the others are counted, and MLflow's tables have them all."""

MOST_DAMAGE = 3
"""The most reports of damage; `runs.py check` prints all."""

EXECUTIONS = {
    "real": "REAL devices, nothing emulated",
    "virtual": "VIRTUAL devices, emulated on the CPU: shapes and results are true, times are this CPU's",
    "passthrough": "PASSTHROUGH: no device to split over, the whole model ran on the host",
}


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``more`` counts the rows that were left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


@dataclass(frozen=True)
class Section:
    """One part of a report. ``mood`` is good, bad, warn or empty; ``commands`` are (purpose, command)."""

    title: str
    lines: tuple[str, ...] = ()
    mood: str = ""
    table: Table | None = None
    bars: tuple[Phase, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()


def sections(record: Record) -> list[Section]:
    """The sections in order, without those for which the Record has no data."""
    parts = (_run, _verification, _shapes, _device_map, _step_time, _phases, _findings, _next_commands)
    return [section for part in parts if (section := part(record)) is not None]


def _run(record: Record) -> Section:
    lines = [EXECUTIONS.get(record.execution, record.execution or "not started"), *_configuration(record)]
    mood = {"finished": "", "running": "warn"}.get(record.status, "bad")
    if record.execution == "passthrough":
        lines.insert(1, "to see replicas on this machine, emulate devices: --virtual 2")
        mood = mood or "warn"
    if emulation := layout.emulation(record.strategy, record.execution, record.devices):
        lines.insert(1, emulation)
    if record.error:
        error = ": ".join(filter(None, (record.error.get("type"), record.error.get("message"))))
        lines.insert(0, f"{record.status.upper()}: {shortened(error)}")
    elif record.status != "finished":
        lines.insert(0, f"{record.status.upper()}: the report shows what was recorded until then")
    if record.damage:
        others = len(record.damage) - MOST_DAMAGE
        more = f"; and {others} more" if others > 0 else ""
        lines.append(f"DAMAGED: {'; '.join(record.damage[-MOST_DAMAGE:])}{more}")
        mood = mood or "warn"
    title = f"Run {record.name} ({record.run_id})" if record.name else f"Run {record.run_id}"
    return Section(title, tuple(lines), mood)


def _configuration(record: Record) -> list[str]:
    used, get, env = record.devices["used"], record.config.get, record.environment
    names = f": {units.span(used)}" if used else ""
    output = record.devices["output"] or (used or ["cpu"])[0]
    machine = [
        env.get("host"),
        env.get("cpu"),
        f"{env['threads']} threads" if env.get("threads") else "",
        units.repeated(layout.accelerator_names(record), ", "),
        f"torch {env['torch']}" if env.get("torch") else "",
    ]
    return [
        f"strategy {record.strategy} on {layout.stage(record)}{names}; results on {output}",
        f"model {get('model', '?')}, data {get('data', '?')}, batches of {get('batch_size', '?')}, "
        f"{get('dtype', '?')}, seed {get('seed', '?')}{', forward only' if get('eval') else ''}",
        f"machine: {', '.join(filter(None, machine)) or 'not recorded'}",
    ]


def _verification(record: Record) -> Section:
    facts = record.verification
    if not facts.get("checked"):
        why = facts.get("note") or "nothing was compared with a single device"
        return Section("Not verified", (why,), "warn")
    errors = [
        f"{kind} differ by {float(facts[key]):.1e}" if facts[key] else f"{kind} do not differ"
        for kind, key in (("outputs", "output_error"), ("gradients", "gradient_error"))
        if facts.get(key) is not None
    ]
    steps = f" in {facts['steps']} steps" if facts.get("steps") else ""
    line = (
        f"{' and '.join(errors) or 'compared'} from a single device{steps} "
        f"({facts['dtype']}, relative; limit {float(facts['tolerance']):.0e})"
    )
    lines = tuple(filter(None, (line, _worst(facts), facts.get("cause"), facts.get("note"))))
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


def _shapes(record: Record) -> Section | None:
    groups = batches(record)
    if not groups:
        return None
    rows = [(group.name, call.name, *call.texts(), call.where) for group in groups for call in group.calls]
    lines = tuple(f"{group.name}: {group.headline()}" for group in groups)
    return Section("Shapes", lines, table=_table(("batch", "module", "inputs", "outputs", "where"), rows))


def _device_map(record: Record) -> Section | None:
    if not record.device_map:
        return None
    moved = Counter[str]()
    for move in layout.moves(record):
        moved[move.what] += move.bytes
    lines = []
    if moved:
        lines.append("a step moves " + ", ".join(f"{units.size(n)} by {what}" for what, n in moved.items()))
    if "cpu" in record.memory:
        lines.append(f"peak memory of the process: {units.size(record.memory['cpu'])}")
    peaks = {device: units.size(count) for device, count in record.memory.items() if device != "cpu"}
    devices: dict[tuple[str, ...], list[str]] = {}
    has_state = bool(layout.optimizer_rows(record))
    for place in layout.places(record):
        more = (*([units.size(place.optimizer)] * has_state), *([peaks.get(place.device, "-")] * bool(peaks)))
        devices.setdefault((_modules(place), units.size(place.bytes), *more), []).append(place.device)
    rows = [
        (units.span(names), modules, f"{size} each" if len(names) > 1 else size, *more)
        for (modules, size, *more), names in devices.items()
    ]
    more = (*["optimizer state"] * has_state, *["peak memory"] * bool(peaks))
    columns = ("device", "holds", "parameters", *more)
    return Section("Device map", tuple(lines), table=_table(columns, rows))


def _modules(place: layout.DeviceContents) -> str:
    """The modules of a device, as ``fc``, ``a copy of fc`` or ``12 modules``."""
    own, copies = [
        [name or "(model)" for name in names] if len(names) <= 4 else [f"{len(names)} modules"]
        for names in (place.own, place.copies)
    ]
    return ", ".join([*own, *(["a copy of " + ", ".join(copies)] if copies else [])]) or "-"


def _step_time(record: Record) -> Section | None:
    usual = usual_steps(record)
    if usual is None:
        return None
    lines = [
        f"{units.ms(usual.median)} median of {usual.n} steps of {usual.rows} rows, IQR {units.ms(usual.iqr)} "
        f"({units.percent(usual.iqr / usual.median) if usual.median else '-'}), "
        f"from {units.ms(usual.min)} to {units.ms(usual.max)}"
    ]
    if usual.samples_per_s:
        lines.append(f"{units.number(usual.samples_per_s)} samples/s at the median")
    losses = present(record.steps["loss"])
    if losses:
        lines.append(f"loss {losses[0]:.4g} at first, {losses[-1]:.4g} at last")
    lines += [
        f"{name} {kept[-1]:.4g}" for name, values in record.metrics.items() if (kept := present(values))
    ]
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
    found = apply_rules(record).values()
    if not found:
        return Section("Findings", ("none",)) if record.status == "finished" else None
    return Section("Findings", tuple(f"{finding.text} {finding.advice}" for finding in found), "warn")


def _next_commands(record: Record) -> Section:
    git = record.environment.get("git") or {}
    dirty = ", with uncommitted changes" if git.get("dirty") else ""
    lines = [f"code: commit {git['commit'][:10]}{dirty}"] if git.get("commit") else []
    commands = [
        ("look in MLflow", command_of("ui")),
        ("show again", f"{command_of('runs')} show {record.run_id}"),
        ("compare", f"{command_of('report')} {record.run_id} RUN"),
    ]
    if used := live_options(record.config):
        lines.append(f"its {' and '.join(used)} came from a Python program: run that again to repeat it")
    else:
        again = (
            ("run again", command(record)),
            ("reproduce", f"{command_of('runs')} reproduce {record.run_id}"),
        )
        commands += again
    return Section("Look further", tuple(lines), commands=tuple(commands))


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(columns, tuple(rows[:ROWS]), max(0, len(rows) - ROWS))


def command(record: Record) -> str:
    """``python scripts/run.py whole --virtual 8``; the recorded argv if this dpexp cannot read the config."""
    try:
        config = RunConfig.from_dict(record.config)
        usual = RunConfig(config.strategy).to_dict()
    except ConfigError:
        return shlex.join(["python", *record.environment.get("argv", [])])
    words = [*command_of("run").split(), config.strategy]
    chosen = config.to_dict()
    left_out = options_with_role("delivery", "label")
    for cls in (RunConfig, STRATEGY_OPTIONS[config.strategy]):
        for field in option_fields(cls):
            if field.name not in left_out and chosen[field.name] != usual[field.name]:
                words += _option(field.name, field.metadata["flag"], chosen[field.name])
    return shlex.join(words)


def _option(name: str, flag: str | None, value: Any) -> list[str]:
    if isinstance(value, bool) and flag:
        yes, no = flag.split("/")
        return [yes if value else no]
    if isinstance(value, list):
        return [word for item in value for word in (flag_name(name), str(item))]
    return [] if value is None else [flag_name(name), str(value)]

"""The sections of a run's report, in a fixed order, independent of the format.

The terminal summary, the note on the MLflow page and the notebook's display render these sections, so
that they cannot disagree.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpexp.config.alike import merged
from dpexp.config.errors import ConfigError
from dpexp.config.options import flag_name, option_fields
from dpexp.config.process import command
from dpexp.config.run_config import RunConfig, options_with_role
from dpexp.config.strategy_registry import STRATEGY_OPTIONS
from dpexp.live import live_options
from dpexp.record.batches import Batches
from dpexp.record.device_map import optimizer_rows
from dpexp.record.figures.phase_times import Phase
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.report import units, verdict
from dpexp.report.analysis import layout, stages, work
from dpexp.report.analysis.shapes import call_texts, headline
from dpexp.report.findings.rules import Finding, apply_rules, headlines

ROWS = 14
"""The most rows of a table in a short report."""
LINES = 10
"""The most lines of a section of a short report in a terminal; `--full` has all."""


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``more`` counts the rows that were left out.

    On a narrow terminal a table that ``folds`` wraps its cells; any other becomes a list of its rows.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0
    folds: bool = False


@dataclass(frozen=True)
class Section:
    """One part of a report. ``mood`` is good, bad, warn or empty; ``commands`` are (purpose, command).

    A terminal shows at most ``most`` lines, if that is not 0.
    """

    title: str
    lines: tuple[str, ...] = ()
    mood: str = ""
    table: Table | None = None
    bars: tuple[Phase, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    most: int = 0


def sections(record: Record | RecordView, *, full: bool = False) -> list[Section]:
    """The sections of a Record in order, without those for which it has no data.

    A short report has the first finding, and shapes, device map and phases of at most ``LINES`` lines.
    """
    view = RecordView.of(record)
    record, findings = view.record, apply_rules(view)
    parts = [
        _run(view, findings),
        _verification(record) if full else _warning(record),
        shapes_section(view.batches),
        device_map_section(view),
        _work(view) if full else None,
        _phases(view),
        _findings(record, findings, full),
        _next_commands(record),
    ]
    found = [part for part in parts if part is not None]
    return found if full else list(map(shortest, found))


def shortest(section: Section) -> Section:
    """The section with at most ``LINES`` lines and ``ROWS`` rows; its commands stay."""
    if section.table is None and not section.bars:
        return section
    table = section.table
    if table is not None:
        table = replace(table, rows=table.rows[:ROWS], more=max(0, len(table.rows) - ROWS))
    return replace(section, table=table, most=LINES)


def _run(view: RecordView, findings: Mapping[str, Finding]) -> Section:
    record = view.record
    mood = {"finished": "", "running": "warn"}.get(record.status, "bad")
    if record.damage or record.execution == "passthrough":
        mood = mood or "warn"
    title = f"Run {record.name} ({record.run_id})" if record.name else f"Run {record.run_id}"
    lines = (verdict.verdict(view, findings), *verdict.verdict_figures(view), *verdict.remarks(record))
    return Section(title, lines, mood)


def _warning(record: Record) -> Section | None:
    """The verification where it has more to say than its errors: it failed, was left out, or has a note."""
    section, facts = _verification(record), record.verification
    if section.mood != "good":
        return section
    return Section(section.title, (facts["note"],), section.mood) if facts.get("note") else None


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


def shapes_section(groups: Sequence[Batches], note: str = "") -> Section | None:
    """How batches are split, and the shapes of every call; modules and replicas that are alike in one row."""
    if not groups:
        return None
    rows = []
    for group in groups:
        batch = group.name.partition(" ")[2]
        calls = [(call.name, (*call_texts(call), call.where)) for call in group.calls]
        rows += [(batch, name, *content) for name, content in merged(calls)]
    lines = (*filter(None, [note]), *(f"{group.name}: {headline(group)}" for group in groups))
    columns = ("batch", "module", "inputs", "outputs", "where")
    return Section("Shapes", lines, table=Table(columns, tuple(rows), folds=True))


def device_map_section(view: RecordView) -> Section | None:
    record = view.record
    if not record.device_map:
        return None
    lines = _moved(view)
    if "cpu" in record.memory:
        lines.append(f"peak memory of the process: {units.size(record.memory['cpu'])}")
    mapped = [row for row in record.device_map if row.get("mapped")]
    if mapped:
        names, size = ", ".join(row["module"] for row in mapped), sum(row["bytes"] for row in mapped)
        lines.append(f"{names}: {units.size(size)} mapped from files in {record.config['table_file']}")
    peaks = {device: units.size(count) for device, count in record.memory.items() if device != "cpu"}
    devices: dict[tuple[str, ...], list[str]] = {}
    has_state = bool(optimizer_rows(record))
    for place in layout.places(record):
        more = (*([units.size(place.optimizer)] * has_state), *([peaks.get(place.device, "-")] * bool(peaks)))
        full = place.full.total() + place.copies.total()
        size = units.size(full) if full == place.bytes else units.part(place.bytes, full)
        devices.setdefault((_modules(place), size, *more), []).append(place.device)
    rows = [
        (units.span(names), modules, f"{size} each" if len(names) > 1 else size, *more)
        for (modules, size, *more), names in devices.items()
    ]
    more = (*["optimizer state"] * has_state, *["peak memory"] * bool(peaks))
    columns = ("device", "holds", "parameters", *more)
    return Section("Device map", tuple(lines), table=Table(columns, tuple(rows), folds=True))


def _work(view: RecordView) -> Section | None:
    """Memory by category and FLOPs of the observed step."""
    columns, rows = work.memory_table(view.record)
    if not rows and not view.record.work:
        return None
    table = Table(columns, tuple(rows), folds=True) if rows else None
    return Section("Memory and work of a step", tuple(work.work_lines(view)), table=table)


def _moved(view: RecordView) -> list[str]:
    """What a step moves between devices, forward and backward, a line each."""
    moved: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}
    for move in view.moves:
        moved["backward" if move.is_backward else "forward"][move.what] += move.bytes
    return [
        f"{way} moves {units.size(found.total())}: "
        + ", ".join(f"{units.size(count)} by {what}" for what, count in found.items())
        for way, found in moved.items()
        if found
    ]


def _modules(place: layout.DeviceContents) -> str:
    """The modules of a device, as ``fc``, ``a copy of layers.0-11.linear1`` or ``12 modules``."""
    whole = {name: count for name, count in place.own.items() if count == place.full[name]}
    own, copies = map(_alike, (whole, place.copies))
    parts = ["; ".join([*_shards(place), *([", ".join(own)] if own else [])])]
    return ", ".join(filter(None, [*parts, *(["a copy of " + ", ".join(copies)] if copies else [])])) or "-"


def _shards(place: layout.DeviceContents) -> list[str]:
    """``a quarter of block1, 265 of 1,060 B`` for each module of which the device has a shard."""
    sizes = {
        name: (count, place.full[name]) for name, count in place.own.items() if count != place.full[name]
    }
    found = merged(sizes.items())
    if len(found) <= 4:
        return [
            f"{units.fraction(*size)} of {name or '(model)'}, {units.part(*size)}" for name, size in found
        ]
    count, full = (sum(size[index] for size in sizes.values()) for index in (0, 1))
    return [f"{units.fraction(count, full)} of {len(sizes)} modules"]


def _alike(modules: Mapping[str, int]) -> list[str]:
    names = [name or "(model)" for name, _ in merged(modules.items())]
    return names if len(names) <= 4 else [f"{len(modules)} modules"]


def _phases(view: RecordView) -> Section | None:
    bars, coverage = tuple(view.phases), view.phase_coverage
    if not bars:
        return None
    line = f"share of a step, medians of {max(bar.n for bar in bars)} steps"
    if coverage is not None:
        line += f"; the phases cover {units.percent(coverage)} of it"
    return Section("Where a step goes", (line, *stages.stage_lines(view)), bars=bars)


def _findings(record: Record, findings: Mapping[str, Finding], full: bool) -> Section | None:
    found = [f"{finding.text} {finding.advice}" for finding in findings.values()]
    if not found:
        return Section("Findings", ("none",)) if record.status == "finished" else None
    if not full and len(found) > 1:
        found[1:] = [f"and {len(found) - 1} more: {', '.join(headlines(findings)[1:])}; --full has them"]
    return Section("Findings", tuple(found), "warn")


def _next_commands(record: Record) -> Section:
    commands = [
        ("look in MLflow", command("ui")),
        ("show all", f"{command('runs')} show {record.run_id} --full"),
        ("compare", f"{command('report')} {record.run_id} RUN"),
    ]
    lines = _origin(record)
    if used := live_options(record.config):
        lines.append(f"its {' and '.join(used)} came from a Python program: run that again to repeat it")
    else:
        again = (
            ("run again", command_of(record)),
            ("reproduce", f"{command('runs')} reproduce {record.run_id}"),
        )
        commands += again
    return Section("Look further", tuple(lines), commands=tuple(commands))


def _origin(record: Record) -> list[str]:
    """The machine and the commit of a run."""
    git, env = record.environment.get("git") or {}, record.environment
    machine = [
        env.get("host"),
        env.get("cpu"),
        f"{env['threads']} threads" if env.get("threads") else "",
        units.repeated(layout.accelerator_names(record), ", "),
        f"torch {env['torch']}" if env.get("torch") else "",
    ]
    lines = [f"machine: {', '.join(filter(None, machine)) or 'not recorded'}"]
    if git.get("commit"):
        dirty = ", with uncommitted changes" if git.get("dirty") else ""
        lines.append(f"code: commit {git['commit'][:10]}{dirty}")
    return lines


def command_of(record: Record) -> str:
    """``python scripts/run.py whole --virtual 8``; the recorded argv if this dpexp cannot read the config."""
    try:
        config = RunConfig.from_dict(record.config)
        usual = RunConfig(config.strategy).to_dict()
    except ConfigError:
        return shlex.join(["python", *record.environment.get("argv", [])])
    words = [*command("run").split(), config.strategy]
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

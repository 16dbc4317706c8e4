"""The sections of a run's report, in a fixed order, independent of the format.

The terminal summary, the note on the MLflow page and the notebook's display render these sections, so
that they cannot disagree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from dpexp.config.alike import merged
from dpexp.config.ranges import plural
from dpexp.record.batches import Batches, optimizer_rows
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.report import layout, memory, style, units, verdict
from dpexp.report.commands import next_commands
from dpexp.report.findings import Finding, findings_of
from dpexp.report.noise import noise_text
from dpexp.report.section import Section, Table, shortest
from dpexp.report.units import call_texts, headline, phase_text


def sections(record: Record | RecordView, *, full: bool = False) -> list[Section]:
    """The sections of a Record in order, without those for which it has no data.

    A short report has the first finding, and shapes, device map and phases of at most ``LINES`` lines.
    """
    view = RecordView.of(record)
    record, findings = view.record, findings_of(view)
    parts = [
        _run(view, findings),
        _verification(record) if full else _warning(record),
        shapes_section(view.batches),
        device_map_section(view),
        _work(view) if full else None,
        _phases(view),
        _operators(record, full),
        _findings(record, findings, full),
        next_commands(record),
    ]
    found = [part for part in parts if part is not None]
    return found if full else list(map(shortest, found))


def _run(view: RecordView, findings: Sequence[Finding]) -> Section:
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
    steps = f" in {plural(facts['steps'], 'step')}" if facts.get("steps") else ""
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
    columns, rows = memory.memory_table(view.record)
    if not rows and not view.record.work:
        return None
    table = Table(columns, tuple(rows), folds=True) if rows else None
    return Section("Memory and work of a step", tuple(memory.work_lines(view)), table=table)


def _operators(record: Record, full: bool) -> Section | None:
    """The costliest operators of the profiled steps (``--profile``)."""
    if "operators" not in record.work:
        return None
    columns, rows = memory.operator_table(record)
    table = Table(columns, tuple(rows), folds=True) if rows and full else None
    return Section("Operators", tuple(memory.operator_lines(record)), table=table)


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
    """Shares with the rest, so that they add up; the times alone where these steps cannot be judged."""
    phases, coverage = view.phases, view.phase_coverage
    if not phases:
        return None
    steps, title = plural(max(phase.n for phase in phases), "step"), "Where a step goes"
    if noise := view.noise or view.phase_noise:
        why = "the run cannot be judged" if view.noise else f"they cannot be judged: {noise_text(noise)}"
        line = f"medians of {steps}, without shares: {why}"
        rows = tuple(("  " * phase.depth + phase.name, phase_text(phase)) for phase in phases)
        return Section(title, (line,), "warn", table=Table(("phase", "time [IQR]"), rows))
    line = f"share of a step on average, and medians, of {steps}"
    if coverage is not None:
        line += f"; the phases cover {units.percent(coverage)} of it"
    bars = (*phases, *([view.rest] if view.rest is not None else []))
    return Section(title, (line,), bars=bars, colors=style.of_run(view))


def _findings(record: Record, findings: Sequence[Finding], full: bool) -> Section | None:
    found = [f"{finding.text} {finding.advice}" for finding in findings]
    if not found:
        return Section("Findings", ("none",)) if record.status == "finished" else None
    if not full and len(found) > 1:
        found[1:] = [f"and {len(found) - 1} more: {', '.join(finding.name for finding in findings[1:])}"]
    return Section("Findings", tuple(found), "warn")

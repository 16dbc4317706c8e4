"""The sections of a run's report, in a fixed order, independent of the format.

The terminal, the note on the MLflow page and a notebook show these sections, so that they cannot disagree.
"""

from collections import Counter
from collections.abc import Mapping

from dpexp.config.words import listed, merged, plural, shortened
from dpexp.record.batches import named, optimizer_rows, unobserved
from dpexp.record.figures import At, figures
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE
from dpexp.record.phases import Phase
from dpexp.record.record import Record
from dpexp.record.view import CATEGORIES, RecordView
from dpexp.report import layout, style, units, verification
from dpexp.report.commands import next_commands
from dpexp.report.findings import findings_of
from dpexp.report.plan import plan_sections
from dpexp.report.section import Bar, Section, Table, short_section

EXECUTIONS = {
    "real": "REAL devices",
    "virtual": "VIRTUAL devices",
    "passthrough": "PASSTHROUGH: the whole model ran on the host",
}
HEADINGS = {"optimizer": "optimizer state", "peak": "at most at once"}
OF_STEP_TIME = ("samples_per_s", "wall_samples_per_s")
"""Figures that a run which cannot be judged does not show, or in its verdict."""


def sections(view: RecordView, *, full: bool = False) -> list[Section]:
    """The sections of a Record in order, without those for which it has no data.

    A short report has the first finding, no memory, and few lines of shapes and of the device map.
    """
    if view.record.plan:
        return plan_sections(view.record.plan, view.record.config)
    record, findings = view.record, findings_of(view)
    shapes, device_map = shapes_section(view), device_map_section(view)
    parts = [
        _run(view, findings),
        verification.verification_section(record, full),
        shapes if full else short_section(shapes),
        device_map if full else short_section(device_map),
        work_section(view) if full else None,
        _phases(view),
        profile_section(record),
        _findings(record, findings, full),
        next_commands(record),
    ]
    return [part for part in parts if part is not None]


# --- the run: a verdict, then figures ------------------------------------------------------------


def _run(view: RecordView, findings: Mapping[str, str]) -> Section:
    record, facts = view.record, view.record.verification
    mood = {"finished": "", "planned": "", "running": "warn"}.get(record.status, "bad")
    is_passthrough = record.execution == "passthrough"
    if record.damage or is_passthrough:
        mood = mood or "warn"
    title = f"Run {record.name} ({record.run_id})" if record.name else f"Run {record.run_id}"
    if record.status == "planned":
        title = f"Would run {record.name} ({record.execution})"
    lines = [
        _verdict(view, findings),
        f"strategy {record.strategy}{layout.where(record)}",
        _config(view),
        _steps(view),
        _rates(view),
        *verification.verification_lines(facts),
        "to see replicas, emulate devices: --virtual 2" if is_passthrough and not record.is_watched else "",
        layout.emulation(record),
        (facts["note"] or "") if record.status == "planned" else "",
        f"DAMAGED: {'; '.join(record.damage)}" if record.damage else "",
    ]
    return Section(title, tuple(filter(None, lines)), mood)


def _verdict(view: RecordView, findings: Mapping[str, str]) -> str:
    """How the run was executed, whether it is verified, its step time, and the first of its findings.

    Of a run that cannot be judged: why, and its rate by wall clock. Of a loop that is watched: how many steps
    were compared. Empty for a dry run.
    """
    record, usual = view.record, view.usual
    if record.status == "planned":
        return ""
    if record.error:
        error = ": ".join(filter(None, (record.error.get("type"), record.error.get("message"))))
        return f"{record.status.upper()}: {shortened(error)}"
    if record.status != "finished":
        return f"{record.status.upper()}: the report shows what was recorded until then"
    execution = EXECUTIONS.get(record.execution, record.execution or "not started")
    parts = [f"{execution}, {verification.verified(record.verification)}"]
    if record.is_watched:
        return f"{parts[0]}; {plural(record.verification.get('steps') or 0, 'step')} compared"
    if view.noise is not None:
        wall = view.wall_samples_per_s
        parts.append(f"cannot be judged: {units.noise_text(view.noise)}")
        return "; ".join([*parts, *([f"{units.number(wall)} samples/s by wall clock"] if wall else [])])
    if usual is not None:
        parts.append(f"{units.ms(usual.median)} per step, IQR {units.ms(usual.iqr)}, n {usual.n}")
    return "; ".join([*parts, *[*findings][:1]])


def _config(view: RecordView) -> str:
    get = view.record.config.get
    rows = view.largest.rows if view.largest is not None else get("batch_size", "?")  # data may have its own
    if view.record.is_watched:
        layout_text = f" in {get('layout')}" if get("layout") else ""
        return f"a training loop of its own, model {get('model')}{layout_text}, calls of {rows} rows"
    forward = ", forward only" if get("eval") else ""
    return (
        f"model {get('model', '?')}, data {get('data', '?')}, batches of {rows}, "
        f"{get('dtype', '?')}, seed {get('seed', '?')}{forward}"
    )


def _steps(view: RecordView) -> str:
    usual = view.usual
    if usual is None:
        return ""
    others = {rows: len(times) for rows, times in view.by_rows.items() if rows != usual.rows}
    of_usual = f"median of {plural(usual.n, 'step')} of {plural(usual.rows, 'row')}"
    if not others:
        return of_usual
    sizes = listed((f"{count} of {plural(rows, 'row')}" for rows, count in others.items()), 3)
    return f"{of_usual}; left out: {sizes}"


def _rates(view: RecordView) -> str:
    """The figures that stand at ``At.TERMINAL``; those that are built on the step time need one."""
    texts = []
    for figure in figures(At.TERMINAL):
        value = figure.of(view)
        if figure.name == "loss" and value:
            texts.append(f"loss {value[0]:.4g} (initial), {value[-1]:.4g} (final)")
        elif isinstance(value, Mapping):
            texts += [f"{name} {number:.4g}" for name, number in value.items()]
        elif (number := figure.number(view)) and not (view.noise and figure.name in OF_STEP_TIME):
            text = units.text(number, figure.unit)
            texts.append(f"{figure.title} {text}" if figure.unit else f"{text} {figure.title}")
            if figure.name == "samples_per_s" and view.record.execution == "virtual":
                texts[-1] += " on this CPU"
    return "; ".join(texts)


# --- shapes and device map -----------------------------------------------------------------------


def shapes_section(view: RecordView) -> Section | None:
    """How batches are split, and the shapes of every call; modules and replicas that are alike in one row."""
    if not view.batches:
        return None
    rows = []
    for group in view.batches:
        batch = group.name.partition(" ")[2]
        calls = [(call.name, (*units.call_texts(call), call.where)) for call in group.calls]
        rows += [(batch, name, *content) for name, content in merged(calls)]
    lines = [f"{group.name}: {units.batches_text(group)}" for group in view.batches]
    if others := unobserved(view.record):
        lines.append(f"{named(others)}: not observed")
    table = Table(("batch", "module", "inputs", "outputs", "where"), tuple(rows))
    return Section("Shapes", tuple(lines), table=table)


def device_map_section(view: RecordView) -> Section | None:
    """What a step moves between devices, and what lies on each; devices that are alike share a row."""
    record = view.record
    if not record.device_map:
        return None
    lines = _moved(view)
    if "cpu" in record.memory:
        lines.append(f"peak memory of the process: {units.size(record.memory['cpu'])}")
    peaks = {device: units.size(count) for device, count in record.memory.items() if device != "cpu"}
    has_state = bool(optimizer_rows(record))
    devices: dict[tuple[str, ...], list[str]] = {}
    for place in layout.places(record):
        size, full = place.own.total() + place.copies.total(), place.full.total() + place.copies.total()
        cells = [layout.holds(place), units.size(size) + (f" of {units.size(full)}" if size < full else "")]
        cells += [units.size(place.optimizer)] * has_state + [peaks.get(place.device, "-")] * bool(peaks)
        devices.setdefault(tuple(cells), []).append(place.device)
    rows = [
        (units.device_names(names), modules, f"{size} each" if len(names) > 1 else size, *more)
        for (modules, size, *more), names in devices.items()
    ]
    more = (*["optimizer state"] * has_state, *["peak memory"] * bool(peaks))
    return Section(
        "Device map", tuple(lines), table=Table(("device", "holds", "parameters", *more), tuple(rows))
    )


def _moved(view: RecordView) -> list[str]:
    moved: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}
    for move in view.moves:
        moved["backward" if move.is_backward else "forward"][move.what] += move.bytes
    return [
        f"{way} moves {units.size(sizes.total())}: "
        + ", ".join(f"{units.size(count)} by {what}" for what, count in sizes.items())
        for way, sizes in moved.items()
        if sizes
    ]


# --- memory, work and profile --------------------------------------------------------------------


def work_section(view: RecordView) -> Section | None:
    """Memory by category of each device, those that are alike in one row, and the FLOPs of a step."""
    record, work = view.record, view.record.work
    if not record.memory_use and not work:
        return None
    shown = [key for key in CATEGORIES if any(key in row for row in record.memory_use)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in record.memory_use:
        sizes = tuple(units.size(row[key]) if key in row else "-" for key in shown)
        alike.setdefault(sizes, []).append(row["device"])
    rows = tuple((units.device_names(devices), *sizes) for sizes, devices in alike.items())
    table = Table(("device", *(HEADINGS.get(key, key) for key in shown)), rows) if rows else None
    note = f"memory and FLOPs of a step: {work['note']}" if work.get("note") else ""
    tokens = f"{units.number(view.tokens_per_s)} tokens/s" if view.tokens_per_s and not view.noise else ""
    lines = [note] if note else [_computed(view), tokens]
    return Section("Memory and work of a step", tuple(filter(None, lines)), table=table)


def _computed(view: RecordView) -> str:
    if uncounted := view.record.work.get("uncounted"):
        return f"FLOPs are not known: PyTorch has no formula for {listed(uncounted)}"
    parts = [f"{units.flop(count)} in {name}" for name, count in view.flops.items()]
    if not parts:
        return ""
    rate = f"; {units.text(view.flops_per_s, 'FLOP/s')}" if view.flops_per_s and not view.noise else ""
    rows = plural(view.record.work["rows"], "row")
    return f"a step of {rows} computes at least {', '.join(parts)}{rate}"


def profile_section(record: Record) -> Section | None:
    """Where the trace and the table of ``--profile`` are, or why there are none."""
    profile = record.work.get("profile")
    if profile is None:
        return None
    if "note" in profile:
        return Section("Profile", (profile["note"],))
    line = (
        f"{plural(profile['steps'], 'step')} under torch.profiler: {PROFILE_TRACE} opens in ui.perfetto.dev, "
        f"{PROFILE_TABLE} has the costliest operators; both are in the run's folder"
    )
    return Section("Profile", (f"{line} and in MLflow" if record.is_tracked else line,))


# --- phases and findings -------------------------------------------------------------------------


def _phases(view: RecordView) -> Section | None:
    """Shares with the rest, so that they add up; the times alone where the run cannot be judged."""
    phases, coverage, title = view.phases, view.phase_coverage, "Where a step goes"
    if not phases:
        return None
    steps = plural(max(phase.n for phase in phases), "step")
    if view.noise is not None:
        rows = tuple(("  " * phase.depth + phase.name, _phase_text(phase)) for phase in phases)
        line = f"medians of {steps}, without shares: the run cannot be judged"
        return Section(title, (line,), "warn", Table(("phase", "time"), rows))
    line = f"share of a step on average, and medians, of {steps}"
    if coverage is not None:
        line += f"; the phases cover {units.percent(coverage)} of it"
    colors = style.of_run(view)
    bars = tuple(
        Bar("  " * phase.depth + phase.name, phase.share, _phase_text(phase), colors[phase.name])
        for phase in (*phases, *([view.rest] if view.rest is not None else []))
    )
    return Section(title, (line,), bars=bars)


def _phase_text(phase: Phase) -> str:
    """Its time, and what it moves: ``0.21 ms [IQR 0.02 ms], 3.2 kB``."""
    moved = f", {units.size(phase.bytes)}" if phase.bytes else ""
    return f"{units.ms(phase.median)} [IQR {units.ms(phase.iqr)}]{moved}"


def _findings(record: Record, findings: Mapping[str, str], full: bool) -> Section | None:
    texts = [*findings.values()]
    if not texts:
        is_complete = record.status == "finished" and not record.is_watched
        return Section("Findings", ("none",)) if is_complete else None
    if not full and len(texts) > 1:
        texts[1:] = [f"and {len(texts) - 1} more: {', '.join([*findings][1:])}"]
    return Section("Findings", tuple(texts), "warn")

"""Memory and work: what the observed step had and computed; and where its profile is."""

from dpexp.config.words import listed, plural
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE
from dpexp.record.record import Record
from dpexp.record.view import CATEGORIES, RecordView
from dpexp.report import units
from dpexp.report.section import Section, Table

HEADINGS = {"optimizer": "optimizer state", "peak": "at most at once"}


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
    lines = [note] if note else [_computed(view), _tokens(view)]
    return Section("Memory and work of a step", tuple(filter(None, lines)), table=table)


def _computed(view: RecordView) -> str:
    """What a step computes, and how fast if that can be judged."""
    if uncounted := view.record.work.get("uncounted"):
        return f"FLOPs are not known: PyTorch has no formula for {listed(uncounted)}"
    parts = [f"{units.flop(count)} in {name}" for name, count in view.flops.items()]
    if not parts:
        return ""
    rate = f"; {units.text(view.flops_per_s, 'FLOP/s')}" if view.flops_per_s and not view.noise else ""
    rows = plural(view.record.work["rows"], "row")
    return f"a step of {rows} computes at least {', '.join(parts)}{rate}"


def _tokens(view: RecordView) -> str:
    tokens = view.tokens_per_s
    return f"{units.number(tokens)} tokens/s" if tokens and not view.noise else ""


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

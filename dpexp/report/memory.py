"""Memory and work of the observed step as text, and the costliest operators of the profiled ones."""

from dpexp.config.ranges import plural
from dpexp.record.files import PROFILER_TRACE
from dpexp.record.record import Record, Row
from dpexp.record.view import CATEGORIES, RecordView
from dpexp.report import units

HEADINGS = {"optimizer": "optimizer state", "peak": "at most at once"}
NAMED = 6
"""The most operators that are named as not counted."""
NAMED_COSTLIEST = 3
"""How many of the costliest operators a short report names."""


def memory_table(record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of the memory of each device by category; devices that are alike share a row."""
    shown = [key for key in CATEGORIES if any(key in row for row in record.memory_use)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in record.memory_use:
        sizes = tuple(units.size(row[key]) if key in row else "-" for key in shown)
        alike.setdefault(sizes, []).append(row["device"])
    columns = ("device", *(HEADINGS.get(key, key) for key in shown))
    return columns, [(units.span(devices), *sizes) for sizes, devices in alike.items()]


def work_lines(view: RecordView) -> list[str]:
    """What a step computes, how fast, and what is not in these figures."""
    if note := view.record.work.get("note"):
        return [f"memory and FLOPs of a step: {note}"]
    return [line for line in (_computed(view), _not_counted(view.record), _peak(view), _others(view)) if line]


def _computed(view: RecordView) -> str:
    parts = [f"{units.flop(count)} in {name}" for name, count in view.flops.items()]
    if not parts:
        return ""
    rows = plural(view.record.work["rows"], "row")
    return f"a step of {rows} computes at least {', '.join(parts)}{_rate(view)}"


def _not_counted(record: Record) -> str:
    names = record.work.get("not_counted", [])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"not counted: {', '.join(names[:NAMED])}{more}" if names else ""


def _peak(view: RecordView) -> str:
    """The share of the machine's peak, and how that was measured."""
    share, peak = view.peak_share, view.record.work.get("peak")
    if share is None or peak is None:
        return ""
    rates, several = peak["flops_per_s"], f"{peak['devices']} × " if peak["devices"] > 1 else ""
    sides = f"{peak['size']} x {peak['size']}"
    most, median, iqr = (f"{units.flop(rates[key])}/s" for key in ("max", "median", "iqr"))
    return (
        f"that is at least {units.percent(share)} of the peak of {several}{peak['device']}: {most}, "
        f"the most of {rates['n']} products of {sides} matrices (median {median}, IQR {iqr}, "
        f"{peak['dtype']}, {plural(peak['threads'], 'thread')})"
    )


def _others(view: RecordView) -> str:
    """Tokens a second, and energy."""
    tokens, joules = view.tokens_per_s, view.joules_per_step
    parts = [f"{units.number(tokens)} tokens/s"] if tokens else []
    if joules is not None:
        names = ", ".join(view.record.work["energy"]["joules"])
        parts.append(f"{joules:.3g} J a step of {names}, all that runs there included")
    return "; ".join(parts)


def _rate(view: RecordView) -> str:
    """``; 12 GFLOP/s``, where it is known."""
    return f"; {units.text(view.flops_per_s, 'FLOP/s')}" if view.flops_per_s else ""


def operator_lines(record: Record) -> list[str]:
    """Which operators took most of the profiled steps, where their trace is, and what is not known."""
    found = record.work["operators"]
    lines = [found["note"]] if found.get("note") else []
    if rows := found.get("rows"):
        costliest = ", ".join(f"{row['name']} {_share(row, found)}" for row in rows[:NAMED_COSTLIEST])
        own = f"{units.ms(found['total_ms'])} a step on {found['device']}, over all threads"
        lines.insert(
            0, f"{plural(found['steps'], 'step')} under torch.profiler: own time {own}; most {costliest}"
        )
    if "trace" in found:
        size = units.size(found["trace"]["bytes"])
        lines.append(f"{PROFILER_TRACE} ({size}) in the run's folder and in MLflow opens in ui.perfetto.dev")
    return lines


def operator_table(record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of the costliest operators, in one step."""
    found = record.work["operators"]
    columns = ("operator", "calls", "own time", "share")
    return columns, [
        (row["name"], f"{row['calls']:g}", units.ms(row["self_ms"]), _share(row, found))
        for row in found.get("rows", [])
    ]


def _share(row: Row, found: Row) -> str:
    """Of the own time of all operators."""
    return units.percent(row["self_ms"] / found["total_ms"]) if found["total_ms"] else "-"

"""Memory and work of the observed step as text: a row for each kind of device, a line for its FLOPs."""

from dpexp.record import CATEGORIES, Record
from dpexp.report import units

HEADINGS = {"optimizer": "optimizer state", "peak": "at most at once"}
NAMED = 6
"""The most operators that are named as not counted."""


def memory_table(record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of the memory of each device by category; devices that are alike share a row."""
    shown = [key for key in CATEGORIES if any(key in row for row in record.memory_use)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in record.memory_use:
        sizes = tuple(units.size(row[key]) if key in row else "-" for key in shown)
        alike.setdefault(sizes, []).append(row["device"])
    columns = ("device", *(HEADINGS.get(key, key) for key in shown))
    return columns, [(units.span(devices), *sizes) for sizes, devices in alike.items()]


def lines(record: Record) -> list[str]:
    """What a step computes, how fast, and what is not in these figures."""
    if note := record.work.get("note"):
        return [f"memory and FLOPs of a step: {note}"]
    flops = record.summary.get("flops")
    if not flops:
        return []
    parts = [f"{units.flop(count)} in {name}" for name, count in flops.items()]
    found = [f"a step of {record.work['rows']} rows computes at least {', '.join(parts)}{rate(record)}"]
    names = record.work.get("not_counted", [])
    if names:
        more = f" and {len(names) - NAMED} more operators" if len(names) > NAMED else ""
        found.append(f"not counted: {', '.join(names[:NAMED])}{more}")
    return found


def rate(record: Record, joint: str = "; ") -> str:
    """``; 12 GFLOP/s``, where it is known."""
    per_second = record.summary.get("flops_per_s")
    return f"{joint}{units.flop(per_second)}/s" if per_second else ""

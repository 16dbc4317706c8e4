"""A comparison as report sections: a table and sentences for each group, for terminal, Markdown and HTML."""

from collections.abc import Callable, Mapping, Sequence

from dpexp.config.names import cell_title
from dpexp.config.ranges import plural
from dpexp.record.figures import At, Figure, figures
from dpexp.record.record import Record
from dpexp.report import layout, units
from dpexp.report.compare import Cell, Comparison, Group
from dpexp.report.intervals import ONE_RUN, Interval
from dpexp.report.listing import prefixes
from dpexp.report.section import Section, Table

NOISY = 0.2
SHOWN = 40
"""At most this many cells of a group are shown: the fastest, and the baseline."""


def comparison_sections(comparison: Comparison) -> list[Section]:
    """A section for each group, then the runs that are not ranked or left out, with the reasons."""
    sections = [_group(group, number) for number, group in enumerate(comparison.groups, start=1)]
    refusals = tuple(comparison.refusals())
    if refusals:
        sections.append(Section("Not ranked against each other", refusals, "warn"))
    if comparison.left_out:
        rows = tuple(comparison.left_out[:SHOWN])
        table = Table(("run", "why"), rows, len(comparison.left_out) - len(rows))
        sections.append(Section("Left out", table=table, mood="warn"))
    return sections


def shown_cells(group: Group) -> list[Cell]:
    """The cells of a group that are shown, fastest first."""
    baseline, fastest = group.baseline, group.ranked[:SHOWN]
    return fastest if baseline in fastest else [*fastest[:-1], baseline]


def labels(cells: Sequence[Cell]) -> list[str]:
    """The runs' names, with the run id where names are equal, and ``x 3`` after three repeats."""
    names = [_name(cell.first) for cell in cells]
    return [
        (name if names.count(name) == 1 else f"{name} {cell.first.run_id[:6]}")
        + (f" x {len(cell.runs)}" if len(cell.runs) > 1 else "")
        for cell, name in zip(cells, names, strict=True)
    ]


def _name(run: Record) -> str:
    """The name of the run; of a sweep's that of its cell, as one reads it."""
    return (cell_title(run.name.rpartition(".r")[0]) if run.parent else run.name) or run.name or run.strategy


def run_ids(cells: Sequence[Cell]) -> list[str]:
    """The id of each cell's first run, shortened, and how many more runs it has: ``8f3a12bc +2``."""
    ids = prefixes([cell.first.run_id for cell in cells])
    more = (len(cell.runs) - 1 for cell in cells)
    return [f"{run_id} +{count}" if count else run_id for run_id, count in zip(ids, more, strict=True)]


def dates(cells: Sequence[Cell]) -> str:
    """When the runs of these cells started: ``2026-11-22 14:03 to 14:10``."""
    started = sorted(run.started[:16].replace("T", " ") for cell in cells for run in cell.runs)
    first, last = started[0], started[-1]
    if first == last:
        return first
    return f"{first} to {last[11:] if first[:10] == last[:10] else last}"


def comparison_verdict(speed_up: Interval) -> str:
    """``faster``, ``slower``, ``within the noise`` where the interval contains 1, nothing without one."""
    if not speed_up.is_known:
        return ""
    if 1.0 in speed_up:
        return "within the noise"
    return "faster" if speed_up.low > 1 else "slower"


def _group(group: Group, number: int) -> Section:
    cells = shown_cells(group)
    labeled = list(zip(labels(cells), cells, strict=True))
    lines = [
        f"{group.execution} on {', '.join(group.machine)}; model {group.work[0]}, data {group.work[1]}, "
        f"{plural(group.cells[0].rows, 'row')}; {dates(cells)}",
        _fastest(labeled),
        *_noisy(labeled),
    ]
    lines += _explained(group)
    ids = run_ids(cells)
    rows = [
        {"run": label, "id": run_id, **_row(cell, group)}
        for (label, cell), run_id in zip(labeled, ids, strict=True)
    ]
    count = plural(len(group.cells), "config")
    table = Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), len(group.cells) - len(cells))
    return Section(f"Comparison {number}: {count}", tuple(lines), table=table)


def _fastest(labeled: list[tuple[str, Cell]]) -> str:
    if len(labeled) < 2:
        return "one config: there is nothing to rank it against"
    (first, fastest), (second, next_cell) = labeled[:2]
    lead = fastest.speed_up(next_cell)
    if not lead.is_known:
        return f"{first} has the shortest step: {_interval(lead)} over {second}, the next"
    if 1.0 in lead:
        return (
            f"{first} and {second} are within the noise of one another: {_interval(lead)}, {lead.seen_text}"
        )
    return f"{first} is the fastest: {_interval(lead)} over {second}, the next"


def _explained(group: Group) -> list[str]:
    """What the words of the table mean that need it."""
    others = [cell for cell in group.cells if cell is not group.baseline]
    found = [cell.speed_up(group.baseline) for cell in others]
    lines = []
    if any(not each.is_known for each in found):
        lines.append(
            "a config that ran once has no interval: its steps do not show how far the next run will lie; "
            "repeat it to compare it"
        )
    if any(each.is_known and 1.0 in each for each in found):
        lines.append(
            "within the noise: a difference of the size that would show is found by four of five comparisons "
            "of as many runs with such a spread"
        )
    if any(
        each.is_known and 1.0 not in each and group.baseline.medians.keys().isdisjoint(cell.medians)
        for cell, each in zip(others, found, strict=True)
    ):
        lines.append(
            "runs that were not made in the rounds of one sweep: a drift of the machine between them looks "
            "like a difference"
        )
    return lines


def _noisy(labeled: list[tuple[str, Cell]]) -> list[str]:
    shares = [(label, cell.step_ms["iqr"] / cell.step_ms["median"]) for label, cell in labeled]
    noisy = [
        f"{label} (IQR {units.percent(share)} of its median)" for label, share in shares if share > NOISY
    ]
    return [f"too noisy to compare closely: {', '.join(noisy)}"] if noisy else []


def _row(cell: Cell, group: Group) -> dict[str, str]:
    row = {
        "strategy": cell.first.strategy,
        "devices": str(cell.devices),
        "execution": cell.first.execution,
    }
    for figure in figures(At.TABLE):
        if figure.name == "metrics":
            found = cell.metrics()
            row |= {name: f"{found[name]:.4g}" if name in found else figure.unknown for name in group.metrics}
        elif figure.name != "efficiency" or group.scales:
            row[_title(figure)] = _TEXTS.get(figure.name, _text)(cell, figure, group.baseline)
    return row


def _title(figure: Figure) -> str:
    return f"{figure.title} {figure.unit} [IQR] n" if figure.is_sampled else figure.title


def _text(cell: Cell, figure: Figure, baseline: Cell) -> str:
    number = cell.number(figure)
    if number is None:
        return figure.unknown
    if not figure.is_sampled:
        return units.text(number, figure.unit)
    samples = cell.pooled(figure)
    return f"{number:.3g} [{samples['iqr']:.2g}] {samples['n']:.0f}"


def _speed_up(cell: Cell, figure: Figure, baseline: Cell) -> str:
    if cell is baseline:
        return "baseline"
    found = cell.speed_up(baseline)
    seen = f", {found.seen_text}" if found.is_known and 1.0 in found else ""
    return f"{_interval(found)} {comparison_verdict(found)}{seen}".strip()


def _efficiency(cell: Cell, figure: Figure, baseline: Cell) -> str:
    return units.text(cell.efficiency(baseline), figure.unit)


def _interval(interval: Interval) -> str:
    ends = f"[{_end(interval.low)}, {_end(interval.high)}]" if interval.is_known else ONE_RUN
    return f"{units.ratio(interval.value)} {ends}"


def _end(value: float) -> str:
    """An end of an interval; of two runs that differ much it is of any size, which says nothing."""
    return "<0.01" if value < 0.01 else ">100" if value > 100 else f"{value:.2f}"


def _memory(cell: Cell, figure: Figure, baseline: Cell) -> str:
    memory = sorted(cell.memory().items(), key=lambda item: layout.device_order(item[0]))
    if len(memory) > 3:
        device, most = max(memory[1:], key=lambda item: item[1])
        return f"{memory[0][0]} {units.size(memory[0][1])}, at most {device} {units.size(most)}"
    return ", ".join(f"{device} {units.size(count)}" for device, count in memory) or "-"


_TEXTS: Mapping[str, Callable[[Cell, Figure, Cell], str]] = {
    "speed_up": _speed_up,
    "efficiency": _efficiency,
    "peak_memory": _memory,
}
"""How figures read that are more than a number of the cell: ``(cell, figure, baseline) -> text``."""

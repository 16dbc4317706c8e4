"""What a comparison has to say: tables and sentences, for terminal, Markdown and HTML alike."""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.statistics import Interval
from dpexp.report.compare.grouping import Cell, Comparison, Group
from dpexp.report.findings.reliability import NOISY
from dpexp.report.sections import Section, Table

SHOWN = 40
"""So many cells of a group at most are shown (the fastest, and the baseline)."""
COLUMNS = (
    "run",
    "strategy",
    "devices",
    "execution",
    "step ms [IQR] n",
    "samples/s",
    "speed-up [95%]",
    "peak memory",
    "gradient error",
)


def sections(comparison: Comparison) -> list[Section]:
    """A section a group, then what was not ranked and what was left out, with why."""
    sections = [_group(group, number) for number, group in enumerate(comparison.groups, start=1)]
    refusals = tuple(comparison.refusals())
    if refusals:
        sections.append(Section("Not ranked against each other", refusals, "warn"))
    if comparison.left_out:
        rows = tuple(comparison.left_out[:SHOWN])
        more = len(comparison.left_out) - len(rows)
        sections.append(Section("Left out", table=Table(("run", "why"), rows, more), mood="warn"))
    return sections


def shown(group: Group) -> list[Cell]:
    """The cells of a group that are shown, fastest first."""
    ranked, baseline = group.ranked, group.baseline
    first = ranked[:SHOWN]
    return first if baseline in first else [*first[:-1], baseline]


def names(cells: Sequence[Cell]) -> dict[int, str]:
    """A name for each cell, by its ``id()``: the run's name, with its id where that says too little.

    ``x 3`` for three repeats.
    """
    given = [cell.first.name or cell.first.strategy for cell in cells]
    return {
        id(cell): (word if given.count(word) == 1 else f"{word} {cell.first.run_id[:6]}")
        + (f" x {len(cell.runs)}" if len(cell.runs) > 1 else "")
        for cell, word in zip(cells, given, strict=True)
    }


def verdict(speed_up: Interval) -> str:
    """``faster``, ``slower``, or ``within the noise`` where the interval holds 1."""
    if 1.0 in speed_up:
        return "within the noise"
    return "faster" if speed_up.low > 1 else "slower"


def _group(group: Group, number: int) -> Section:
    baseline, cells = group.baseline, shown(group)
    called = names(cells)
    rows = tuple((called[id(cell)], *_figures(cell, baseline)) for cell in cells)
    batch = f"{group.cells[0].rows} rows"
    lines = [
        f"{group.execution} on {', '.join(group.machine)}; model {group.work[0]}, data {group.work[1]}, "
        f"{batch}",
        *_judged(cells, called),
        *_noisy(cells, called),
    ]
    if len(group.cells) > 1 and all(len(cell.runs) == 1 for cell in group.cells):
        lines.append(
            "each config ran once: the intervals hold the spread within a run, not that between runs; repeat "
            "runs "
            "to have both"
        )
    table = Table(COLUMNS, rows, len(group.cells) - len(cells))
    count = f"{len(group.cells)} configs" if len(group.cells) > 1 else "1 config"
    return Section(f"Comparison {number}: {count}", tuple(lines), table=table)


def _judged(cells: list[Cell], called: dict[int, str]) -> list[str]:
    """The one sentence that a reader came for."""
    if len(cells) < 2:
        return ["one config: there is nothing to rank it against"]
    first, second = called[id(cells[0])], called[id(cells[1])]
    lead = cells[0].speed_up(cells[1])
    if 1.0 in lead:
        return [f"{first} and {second} are within the noise of one another: {_interval(lead)}"]
    return [f"{first} is the fastest: {_interval(lead)} over {second}, the next"]


def _noisy(cells: list[Cell], called: dict[int, str]) -> list[str]:
    noisy = [
        f"{called[id(cell)]} (IQR {units.percent(cell.step_ms['iqr'] / cell.step_ms['median'])} of its "
        "median)"
        for cell in cells
        if cell.step_ms["iqr"] > NOISY * cell.step_ms["median"]
    ]
    return [f"too noisy to compare closely: {', '.join(noisy)}"] if noisy else []


def _figures(cell: Cell, baseline: Cell) -> tuple[str, ...]:
    step = cell.step_ms
    gained = None if cell is baseline else cell.speed_up(baseline)
    error = cell.gradient_error()
    return (
        cell.first.strategy,
        str(cell.devices),
        cell.first.execution,
        f"{step['median']:.3g} [{step['iqr']:.2g}] {step['n']:.0f}",
        units.number(cell.samples_per_s),
        "baseline" if gained is None else f"{_interval(gained)} {verdict(gained)}",
        _memory(cell),
        "not checked" if error is None else f"{error:.1e}" if error else "0",
    )


def _interval(interval: Interval) -> str:
    return f"{units.ratio(interval.value)} [{interval.low:.2f}, {interval.high:.2f}]"


def _memory(cell: Cell) -> str:
    memory = sorted(cell.memory().items(), key=lambda item: layout.device_order(item[0]))
    if len(memory) > 3:
        device, most = max(memory[1:], key=lambda item: item[1])
        return f"{memory[0][0]} {units.size(memory[0][1])}, at most {device} {units.size(most)}"
    return ", ".join(f"{device} {units.size(count)}" for device, count in memory) or "-"

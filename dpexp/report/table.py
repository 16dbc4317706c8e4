"""A comparison as report sections: a table and sentences for each group, for the terminal and its page."""

from collections.abc import Sequence

from dpexp.config.words import plural
from dpexp.record.figures import At, Figure, figures
from dpexp.report import units
from dpexp.report.compare import Cell, Comparison, Group
from dpexp.report.intervals import ONE_RUN, Interval, pooled
from dpexp.report.section import Section, Table

ONCE = (
    "a config that ran once has no interval: its steps do not show how far the next run will lie; "
    "repeat it to compare it"
)


def comparison_sections(comparison: Comparison) -> list[Section]:
    """A section for each group, then the runs that are not ranked or left out, with the reasons."""
    sections = [_group(group, number) for number, group in enumerate(comparison.groups, start=1)]
    if refusals := comparison.refusals():
        sections.append(Section("Not ranked against each other", tuple(refusals), "warn"))
    if comparison.left_out:
        table = Table(("run", "why"), tuple(comparison.left_out))
        sections.append(Section("Left out", table=table, mood="warn"))
    return sections


def _label(cell: Cell) -> str:
    """The name of its first run; of a sweep's runs what the names of their cells have in common."""
    run = cell.first
    if not run.parent:
        return run.name or run.strategy
    names = (each.record.name.rpartition(".r")[0] for each in cell.runs.values())
    parts, *others = (name.split("-") for name in names)
    return "-".join(part for part in parts if all(part in other for other in others)) or run.name


def verdict(speed_up: Interval) -> str:
    """``faster``, ``slower``, ``within the noise`` where the interval contains 1, nothing without one."""
    if not speed_up.is_known:
        return ""
    if 1.0 in speed_up:
        return "within the noise"
    return "faster" if speed_up.low > 1 else "slower"


def _group(group: Group, number: int) -> Section:
    cells, key = group.ranked or group.cells, group.key
    names = list(map(_label, cells))
    config, rows = group.cells[0].first.config, plural(group.cells[0].rows, "row")
    forward = ", forward only" if config.get("eval") else ""
    about = (
        f"{key.execution} on {units.counted(key.machine, ', ')}; model {config.get('model')}, "
        f"data {config.get('data')}, {rows}, {config.get('dtype')}{forward}"
    )
    first = _fastest(names, cells) if group.ranked else _not_ranked(names, cells)
    has_once = len(cells) > 1 and any(len(cell.runs) == 1 for cell in cells)
    lines = (about, first, ONCE) if has_once else (about, first)
    columns = {
        "run": names,
        "id": [cell.first.run_id for cell in cells],
        "runs": [str(len(cell.runs)) for cell in cells],
        "strategy": [cell.first.strategy for cell in cells],
        "devices": [str(cell.devices) for cell in cells],
    }
    for figure in figures(At.TABLE):
        if figure.name == "metrics":
            for metric in {name: None for cell in cells for name in cell.metrics()}:
                columns[metric] = [_number(cell.metrics().get(metric), figure) for cell in cells]
        else:
            title = f"{figure.title} {figure.unit} [IQR] n" if figure.is_sampled else figure.title
            columns[title] = [_text(cell, figure, group.baseline) for cell in cells]
    table = Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))
    return Section(f"Comparison {number}: {plural(len(group.cells), 'config')}", lines, table=table)


def _fastest(names: Sequence[str], cells: Sequence[Cell]) -> str:
    if len(cells) < 2:
        return "one config: there is nothing to rank it against"
    lead = cells[0].speed_up(cells[1])
    if not lead.is_known:
        return f"{names[0]} has the shortest step: {_interval(lead)} over {names[1]}, the next"
    if 1.0 in lead:
        both = f"{names[0]} and {names[1]} are within the noise of one another"
        return f"{both}: {_interval(lead)}"
    return f"{names[0]} is the fastest: {_interval(lead)} over {names[1]}, the next"


def _not_ranked(names: Sequence[str], cells: Sequence[Cell]) -> str:
    noisy = (
        f"{plural(cell.noisy, 'run')} of {name}"
        for cell, name in zip(cells, names, strict=True)
        if cell.noisy
    )
    return (
        f"nothing is ranked: too noisy to be judged: {', '.join(noisy)}; "
        "run them again on an otherwise idle machine, with more steps"
    )


def _text(cell: Cell, figure: Figure, baseline: Cell) -> str:
    if figure.name == "speed_up":
        if cell is baseline:
            return "baseline"
        speed_up = cell.speed_up(baseline)
        return "-" if cell.noisy or baseline.noisy else f"{_interval(speed_up)} {verdict(speed_up)}".strip()
    number = cell.number(figure)
    if number is not None and figure.is_sampled:
        samples = pooled(figure, cell.runs)
        return f"{number:.3g} [{samples['iqr']:.2g}] {samples['n']:.0f}"
    return _number(number, figure)


def _number(number: float | None, figure: Figure) -> str:
    if number is None:
        return "-"
    return f"{number:.4g}" if figure.name == "metrics" else units.text(number, figure.unit)


def _interval(interval: Interval) -> str:
    ends = f"[{_end(interval.low)}, {_end(interval.high)}]" if interval.is_known else ONE_RUN
    return f"{units.ratio(interval.value)} {ends}"


def _end(value: float) -> str:
    """An end of an interval; of two runs that differ much it is of any size, which says nothing."""
    return "<0.01" if value < 0.01 else ">100" if value > 100 else f"{value:.2f}"

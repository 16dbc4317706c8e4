"""Listing: what ``runs.py list`` and ``run.py models`` print."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from dpexp.config.printable import printable_line
from dpexp.config.words import plural
from dpexp.record.figures import At, figures
from dpexp.record.record import Row
from dpexp.record.runs import RunSummary
from dpexp.report import units
from dpexp.report.section import Section

_GAP = "  "


def columns(rows: Iterable[Sequence[Any]]) -> list[str]:
    """A line for each row, every column as wide as its longest cell; all rows have the same length."""
    cells = [[printable_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return [
        _GAP.join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


# --- runs ----------------------------------------------------------------------------------------


def runs(summaries: Sequence[RunSummary], delivered: Mapping[str, str]) -> str:
    """A line for each run."""
    verified = {True: "yes", False: "no", None: "-"}
    table = {
        "run": [run.run_id for run in summaries],
        "name": [printable_line(run.name) for run in summaries],
        "strategy": [run.strategy for run in summaries],
        "execution": [run.execution for run in summaries],
        "devices": [units.device_names(run.devices) for run in summaries],
        "verified": ["in part" if run.gaps and run.verified else verified[run.verified] for run in summaries],
        **_figures(summaries),
        "status": [_status(run) for run in summaries],
        "MLflow": [delivered.get(run.run_id, "") for run in summaries],
        "started": [run.started[:16].replace("T", " ") for run in summaries],
    }
    return "\n".join(columns(zip(*([title, *cells] for title, cells in table.items()), strict=True)))


def _figures(summaries: Sequence[RunSummary]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for figure in figures(At.LIST):
        values = [run.figures.get(figure.name) for run in summaries]
        parts = {figure.title: "median", "IQR": "iqr"} if figure.is_sampled else {figure.title: ""}
        for title, part in parts.items():
            numbers = (value[part] if part and value else value for value in values)
            table[title] = ["-" if number is None else units.text(number, figure.unit) for number in numbers]
    return table


def one(run: RunSummary, delivered: str) -> str:
    """One line on what a run holds, for those who are about to delete it."""
    name = f" '{run.name}'" if run.name else ""
    held = run.problem or plural(run.steps, "step")
    return f"run {run.run_id}{name}: {_status(run)}, {held}; delivered to MLflow: {delivered}"


def _status(run: RunSummary) -> str:
    return f"{run.status}, damaged" if run.damage else run.status


# --- models --------------------------------------------------------------------------------------


def models_sections(registry: Sequence[Row]) -> list[Section]:
    """The registry of ``dpexp.models.registry``: each model with its options."""
    sections = []
    for model in registry:
        options = ((f"{option['option']}={option['default']}", option["help"]) for option in model["options"])
        sections.append(Section(f"{model['model']}: {model['help']}", commands=tuple(options)))
    return sections

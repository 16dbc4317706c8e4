"""figure.png of an experiment: each kind of figure draws its data, and carries their digest."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from command_lines import ROOT
from matplotlib.text import Text

from dpexp.record.record import Record
from dpexp.study import figure
from dpexp.study.experiment import load_experiment
from dpexp.study.figure_kinds import Bars, ExperimentFigure, Lines
from dpexp.study.readme import ExperimentReadme
from dpexp.study.records import MeasuredRun, RunsByCell

OF_KIND: dict[type[Any], str] = {
    Bars: "whole_vs_block",
    Lines: "why_slower",
}
"""An experiment with a figure of each kind."""


def figure_of(name: str) -> tuple[ExperimentFigure, RunsByCell]:
    experiment = load_experiment(ROOT / "experiments" / name)
    assert experiment.figure is not None
    return experiment.figure, ExperimentReadme(experiment).main_runs


def test_there_is_an_experiment_with_each_kind_of_figure() -> None:
    assert set(OF_KIND) == set(ExperimentFigure.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", OF_KIND)
def test_a_figure_shows_every_row_of_its_data_and_no_other_records(kind: type[Any], tmp_path: Path) -> None:
    spec, runs = figure_of(OF_KIND[kind])
    assert isinstance(spec, kind)
    data = figure.figure_data(spec, runs)
    texts = " ".join(text.get_text() for text in figure.draw(spec, data).findobj(Text))
    assert {row["label"] for row in data if row["label"] not in texts} == set()
    assert len(data) > 1
    path = tmp_path / "figure.png"
    assert not figure.shows(path, spec, runs)
    figure.save(spec, runs, path)
    assert figure.shows(path, spec, runs)
    assert not figure.shows(path, dataclasses.replace(spec, title="another"), runs)


@pytest.mark.parametrize("kind", OF_KIND)
def test_a_cell_that_was_not_measured_is_left_out(kind: type[Any]) -> None:
    spec, runs = figure_of(OF_KIND[kind])
    whole = figure.figure_data(spec, runs)
    fewer = [figure.figure_data(spec, {**runs, cell: []}) for cell in runs]
    assert [data for data in fewer if data != whole], "no cell is in the figure"
    assert all(len(str(data)) <= len(str(whole)) for data in fewer)


def test_each_line_may_show_a_figure_of_its_own() -> None:
    def cell(rows: int) -> list[MeasuredRun]:
        return [MeasuredRun(f"rows-{rows}", 1, Record(metrics={"one_ms": [rows], "other_ms": [2.0 * rows]}))]

    points = {10.0: "rows-10", 20.0: "rows-20"}
    spec = Lines("Two ways", "time_ms:{}", "rows", {"one": points, "other": points}, y="time")
    one, other = figure.figure_data(spec, {"rows-10": cell(10), "rows-20": cell(20)})
    assert (one["label"], one["x"], one["y"]) == ("one", [10.0, 20.0], [10.0, 20.0])
    assert other["y"] == [20.0, 40.0]
    assert "time" in {text.get_text() for text in figure.draw(spec, [one, other]).findobj(Text)}

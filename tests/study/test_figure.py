"""figure.png of an experiment: bars and lines draw their data, and carry their digest."""

import dataclasses
from pathlib import Path

import pytest
from helpers.record_factory import whole
from matplotlib.text import Text

from dpexp.record.view import RecordView
from dpexp.study import figure
from dpexp.study.experiment import Bars, Lines
from dpexp.study.records import Rounds


def rounds(*step_ms: float) -> Rounds:
    return {number: RecordView(whole(2, step_ms=ms)) for number, ms in enumerate(step_ms, start=1)}


RUNS = {"small": rounds(1, 1.1), "large": rounds(4, 4.1), "base": rounds(1, 1)}
POINTS, BASE = {10.0: "small", 20.0: "large"}, {10.0: "base", 20.0: "base"}
SPECS = {
    "bars": Bars("Bars", "step_ms", {"small": "a small one", "large": "a large one"}),
    "a fact": Bars("Bars", "rows", {"small": "a small one", "large": "a large one"}),
    "lines": Lines("Lines", "step_ms", "rows", {"a line": POINTS, "another": POINTS}),
    "ratios": Lines("Lines", "step_ms", "rows", {"a line": POINTS}, {"a line": BASE}),
}


@pytest.mark.parametrize("kind", SPECS)
def test_a_figure_shows_every_row_of_its_data_and_no_other_records(kind: str, tmp_path: Path) -> None:
    spec, path = SPECS[kind], tmp_path / "figure.png"
    data = figure.figure_data(spec, RUNS)
    texts = " ".join(text.get_text() for text in figure.draw(spec, RUNS).findobj(Text))
    assert {row["label"] for row in data if row["label"] not in texts} == set()
    assert not figure.shows(path, spec, RUNS)
    figure.save(spec, RUNS, path)
    assert figure.shows(path, spec, RUNS)
    assert not figure.shows(path, dataclasses.replace(spec, title="another"), RUNS)
    fewer = figure.figure_data(spec, {**RUNS, "large": {}})
    assert fewer != data, "a cell that was not measured is left out"

"""Figures of a run: what they show, as matplotlib has it."""

from pathlib import Path

import pytest
from helpers.record_factory import PHASES, hybrid, whole
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import style
from dpexp.report.figures import layout_figure, phases_figure
from dpexp.report.timeline import timeline_page


def phases_of(record: Record) -> Figure:
    figure = phases_figure(RecordView(record))
    assert figure is not None
    return figure


def layout_of(record: Record) -> Figure:
    figure = layout_figure(RecordView(record))
    assert figure is not None
    return figure


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("record", [whole(8), hybrid()], ids=["whole-8", "hybrid"])
def test_every_file_of_a_finished_run_is_written(record: Record, tmp_path: Path) -> None:
    written = report.write_files(record, tmp_path / "new")
    assert {path.name for path in written} == {"layout.png", "phases.png", "timeline.html", "trace.json"}
    assert all(path.stat().st_size > 1000 for path in written)
    assert report.write_files(Record(), tmp_path) == []


def test_a_bar_is_as_long_as_its_phase() -> None:
    figure = phases_of(whole(2))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(PHASES)
    assert [bar.get_width() for bar in bars(figure)] == pytest.approx(list(PHASES.values()))
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars(figure)] == [style.PHASES[x] for x in PHASES]
    assert "whole on 2 virtual devices: where a step of 2 ms goes" in texts(figure).replace("\n", " ")
    assert "50%   1 ms [1 ms – 1 ms]" in texts(figure)


def test_steps_that_cannot_be_judged_have_no_shares() -> None:
    record = whole(2)
    record.steps["time_ms"] = [ms * 3.0 ** (step % 11 - 5) for step, ms in enumerate(record.steps["time_ms"])]
    shown = texts(phases_of(record))
    assert "3 steps), which cannot be judged" in shown.replace("\n", " ")
    assert "%" not in shown


def test_a_layout_has_what_each_device_has_computes_and_gets() -> None:
    figure = layout_of(whole(2))
    own = "(model)\nparameters 48 B\ncomputes 15 rows\ngets 120 B by gather\ngets 48 B by replicate backward"
    assert own in texts(figure)
    assert "a copy of (model)\nparameters 48 B\ncomputes 15 rows\ngets 300 B by scatter" in texts(figure)


def test_devices_that_are_alike_share_a_box() -> None:
    figure = layout_of(whole(32, batches=(60,)))
    assert len([text for text in figure.axes[0].texts if text.get_bbox_patch()]) == 3
    assert max(figure.get_size_inches()) < 16


def test_a_phase_has_one_colour_on_all_screens_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    view = RecordView(whole(2, phases={**PHASES, "tidy": 2.0, "weigh": 1.0}))
    color = style.of_run(view)["weigh"]
    assert color not in {other for phase, other in style.of_run(view).items() if phase != "weigh"}
    assert color in {to_hex(bar.get_facecolor()).upper() for bar in bars(phases_of(view.record))}
    assert color in timeline_page(view)
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}m" in report.summary(view, width=100)

"""The screens of a run: terminal and note show the same, each in its own way."""

import html
import re

import pytest
from helpers.record_factory import PHASES, hybrid, whole

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.runs import RunSummary
from dpexp.record.view import RecordView
from dpexp.report import listing, units
from dpexp.report.timeline import timeline_page


def plain(screen: str) -> str:
    """The text of a screen without its own markup, in one line."""
    return " ".join(re.sub(r"\\(.)", r"\1", html.unescape(screen)).split())


@pytest.mark.parametrize("record", [whole(3), hybrid(), whole(8, virtual=False)], ids=lambda each: each.name)
def test_all_screens_of_a_run_have_its_figures(record: Record) -> None:
    view = RecordView(record)
    assert view.usual is not None
    step = units.ms(view.usual.median)
    for screen in map(plain, [report.summary(view, width=200), report.note(view)]):
        assert f"{step} per step, IQR {units.ms(view.usual.iqr)}, n {view.usual.n}" in screen
        assert f"{units.number(view.samples_per_s or 0)} samples/s" in screen
        for phase in view.phases:
            assert f"{units.percent(phase.share)} {units.ms(phase.median)} [IQR" in screen, phase.name
    assert step in listing.runs([RunSummary.of(record)], {})


def test_the_note_has_the_sections_of_the_summary_and_fits_a_tag_of_mlflow() -> None:
    headings = [line[4:] for line in report.note(whole(2)).splitlines() if line.startswith("### ")]
    assert headings == [line for line in report.summary(whole(2)).splitlines() if line[:1].strip()]
    for record in (whole(1000, virtual=False, batches=(2000, 20)), whole(2, modules=100), hybrid()):
        assert len(report.note(record)) < 8000


def test_a_model_called_script_is_text_on_every_screen() -> None:
    name = "<script>alert(1)</script> [a](javascript:b) \x1b[2J\u202e"
    record = whole(2, name=name)
    record.config |= {"model": name, "data": name}
    for row in [*record.device_map, *record.shapes]:
        row["module"] = name
    for row in record.timeline:
        row["device"] = name
    page, note = timeline_page(RecordView(record)), report.note(record)
    assert "<script" not in page
    assert "<script" not in re.sub(r"```.*?```|`.*?`", "", note, flags=re.DOTALL)  # code shows it as it is
    assert "\\[a\\]" in note
    summary, listed = report.summary(record), listing.runs([RunSummary.of(record)], {})
    assert not [screen for screen in (page, note, summary, listed) if {"\x1b", "\u202e"} & set(screen)]
    assert "\\u001b[2J" in summary


# --- the terminal --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_name_is_broken(width: int) -> None:
    deep = whole(2, phases=PHASES | {"allreduce_of_the_first_bucket": 1.0})
    for row in deep.device_map:
        row["module"] = "encoder.layers.11.self_attention.out_projection"
    for record in (whole(32, modules=3), hybrid(sparse=True), whole(2, modules=100), deep):
        text = report.summary(record, width=width, full=True)
        assert max(map(len, text.splitlines())) <= width
        words = set(re.findall(r"\w[\w.-]*", report.summary(record, width=1000, full=True)))
        missing = words - set(re.findall(r"\w[\w.-]*", text))
        assert not [word for word in missing if len(word) < width - 20]

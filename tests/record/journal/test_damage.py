"""A damaged journal: what is lost is missed and named, and nothing that is left changes its place."""

import json
from collections.abc import Callable
from pathlib import Path

import journals
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.journal.journal import JOURNAL, Journal
from dpexp.record.journal.reader import JournalReader
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.run_summary import RunSummary
from dpexp.record.view import RecordView
from dpexp.report import summary
from dpexp.report.render import run_list

Lines = list[bytes]


def damaged(path: Path, change: Callable[[Lines], Lines]) -> Record:
    """The fold of the journal after a change of its lines."""
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    return fold(path)


def without(*places: int) -> Callable[[Lines], Lines]:
    return lambda lines: [line for place, line in enumerate(lines) if place not in places]


def test_a_lost_line_leaves_a_hole_and_other_steps_keep_their_numbers(runs: Path) -> None:
    path = journals.complete(runs, steps=100)
    whole = fold(path)
    record = damaged(path, without(3))  # steps 25 to 49
    for key, values in record.steps.items():
        assert values == whole.steps[key][:25] + [None] * 25 + whole.steps[key][50:]
    assert record.missing_steps() == list(range(25, 50))
    assert record.damage == ["line 4: 1 line before it is lost", "25 steps are missing: 25-49"]
    assert record.summary["missing_steps"] == 25
    assert record.summary["step_ms"]["n"] == 75
    assert RecordView(record).usual_times == whole.steps["time_ms"][:25] + whole.steps["time_ms"][50:]


def test_lost_lines_at_the_end_of_the_steps_are_missed(runs: Path) -> None:
    record = damaged(journals.complete(runs, steps=100), without(4, 5))
    assert record.missing_steps() == list(range(50, 100))
    assert len(record.steps["loss"]) == 100


@pytest.mark.parametrize(
    ("change", "report"),
    [
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], "line 5: repeats an earlier line"),
        (lambda lines: lines * 2, "lines 9-16: repeat earlier lines"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], "line 5: out of order, its number is 3"),
    ],
    ids=["line twice", "file twice", "two lines exchanged"],
)
def test_repeated_and_exchanged_lines_are_reported_and_change_no_value(
    runs: Path, change: Callable[[Lines], Lines], report: str
) -> None:
    path = journals.complete(runs, steps=100)
    whole = fold(path)
    record = damaged(path, change)
    assert report in record.damage
    record.damage = []
    assert record == whole


@given(st.data())
@settings(max_examples=350, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_moves_a_sample(runs: Path, tmp_path: Path, data: st.DataObject) -> None:
    original = runs / "property" / JOURNAL
    if not original.exists():
        journals.complete(runs, "property", steps=200)
    whole, lines = fold(original), original.read_bytes().splitlines(keepends=True)
    places = st.integers(0, len(lines) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        first, second = data.draw(places) % len(lines), data.draw(places) % len(lines)
        what = data.draw(st.sampled_from(["drop", "double", "exchange", "flip", "noise"]))
        if what == "drop" and len(lines) > 1:
            del lines[first]
        elif what == "double":
            lines.insert(second, lines[first])
        elif what == "exchange":
            lines[first], lines[second] = lines[second], lines[first]
        elif what == "flip":
            lines[first] = lines[first].replace(b"seq", b"sek", 1)
        else:
            noise = data.draw(st.binary(min_size=1, max_size=20))
            place = data.draw(st.integers(0, len(lines[first])))
            lines[first] = lines[first][:place] + noise + lines[first][place + len(noise) :]
    content, broken = b"".join(lines), tmp_path / JOURNAL
    broken.write_bytes(content[: data.draw(st.none() | st.integers(0, len(content)))])
    try:
        record = fold(broken)
    except JournalError:
        assert len(list(JournalReader(broken))) == 0
        return
    assert json.loads(record.to_json())["run_id"] == record.run_id
    numbers = [i for i, ms in enumerate(record.steps["time_ms"]) if ms is not None]
    for key, values in record.steps.items():
        assert [(i, values[i]) for i in numbers] == [(i, whole.steps[key][i]) for i in numbers]
    if record.status == "finished":
        assert record.steps == whole.steps or record.damage


def test_a_damaged_run_is_named_in_lists_and_reports(runs: Path) -> None:
    record = damaged(journals.complete(runs, "holed"), without(3))
    assert "finished, 25 steps missing" in run_list.runs([RunSummary.of(record)], {})
    assert "DAMAGED: line 4: 1 line before it is lost; 25 steps are missing: 25-49" in summary(record)
    record = damaged(journals.complete(runs, "doubled"), lambda lines: lines * 2)
    assert "finished, damaged" in run_list.runs([RunSummary.of(record)], {})


def test_a_reopened_damaged_journal_continues_at_the_right_step(runs: Path) -> None:
    journal = journals.begin(runs, "resumed")
    for first in range(0, 100, 25):
        journals.step(journal, first, 25)
    journal.close()
    damaged(journal.path, without(2, 4))  # steps 25 to 49 and, without a trace, the last 25
    with Journal.reopen(journal.folder) as again:
        again.truncate({"steps.time_ms": 90, "steps.loss": 90, "steps.samples": 90})
        journals.step(again, 90, 10)
        journals.end(again)
    record = finish(journal.path)
    assert record.missing_steps() == [*range(25, 50), *range(75, 90)]
    assert record.steps["loss"][90:] == [1 / (1 + number) for number in range(90, 100)]
    assert record.damage == ["line 3: 1 line before it is lost", "40 steps are missing: 25-49, 75-89"]
    assert load(journal.folder) == record


def test_where_the_first_line_is_lost_the_folder_names_the_run(runs: Path) -> None:
    record = damaged(journals.complete(runs, "headless"), without(0))
    assert (record.run_id, record.status) == ("headless", "finished")
    assert len(record.steps["loss"]) == 100

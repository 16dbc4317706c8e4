"""Comparing runs: which are ranked, which are refused, and how certain a difference is."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from helpers.command_lines import script
from helpers.record_factory import hybrid, whole

from dpexp.record.fold import finish, load_record
from dpexp.record.journal import Journal
from dpexp.record.record import Record
from dpexp.report import table, terminal
from dpexp.report.compare import Comparison, compare
from dpexp.report.intervals import Interval
from dpexp.study.records import speed_ups

Save = Callable[..., Path]


@pytest.fixture
def save(dpexp_home: Path) -> Save:
    """Writes a Record as a finished run, with its journal, and returns the run's folder."""

    def write(record: Record, number: int = 0, **changes: object) -> Path:
        for key, value in changes.items():
            setattr(record, key, value)
        record.run_id = f"{number:012x}"
        with Journal(dpexp_home / "runs", record.run_id) as journal:
            known = record.to_dict().items()
            journal.set({key: value for key, value in known if key not in ("summary", "damage")})
        finish(journal.path)
        return journal.folder

    return write


def single(step_ms: float = 2.0) -> Record:
    """A virtual run of ``single``: the baseline."""
    record = whole(1, step_ms=step_ms)
    record.strategy, record.name = "single", "single"
    record.config |= {"strategy": "single"}
    return record


def text(compared: Comparison) -> str:
    return terminal.terminal_text(table.comparison_sections(compared), width=200)


# --- ranked --------------------------------------------------------------------------------------


def test_runs_are_ranked_fastest_first_over_the_single_device(save: Save) -> None:
    cells = ((single, 2.0), (partial(whole, 2), 1.0), (partial(whole, 4), 4.0))
    compared = compare(
        [
            save(make(step_ms=step_ms * wobble), 16**11 * (1 + 3 * number + run))
            for number, (make, step_ms) in enumerate(cells)
            for run, wobble in enumerate((1.0, 1.01, 0.99))
        ]
    )
    (group,) = compared.groups
    assert [cell.first.name for cell in group.ranked] == ["whole-2", "single", "whole-4"]
    assert group.baseline.first.name == "single"
    speed_up = group.ranked[0].speed_up(group.baseline)
    assert speed_up.low < 2.0 < speed_up.high
    found = text(compared)
    assert "30 rows, float32\n" in found
    assert "whole-2 is the fastest: 2.00x [1.9" in found
    assert re.search(r"whole-2 +400000000000 +3 +whole +2 ", found)
    assert re.search(r"whole-4 .* slower ", found)


def test_repeats_of_a_config_form_one_cell_whose_interval_includes_their_spread(save: Save) -> None:
    base = [save(single(2.0), number, memory={"cpu": number * 10**6}) for number in range(3)]
    spread = [save(whole(2, step_ms=ms), 10 + number) for number, ms in enumerate((0.9, 1.0, 1.4))]
    (group,) = compare([*base, *spread]).groups
    assert [len(cell.runs) for cell in group.cells] == [3, 3]
    speed_up = group.ranked[0].speed_up(group.baseline)
    assert speed_up.high - speed_up.low > 0.3
    near = [save(whole(4, step_ms=ms), 20 + n) for n, ms in enumerate((1.99, 2.03))]
    assert "within the noise of one another" in text(compare([*base, *near]))
    assert re.search(r"single .* 15,000 .* 2 MB", text(compare(base))), (
        "rates do not add up; the largest peak"
    )


def test_cells_of_one_run_have_figures_and_neither_interval_nor_verdict(save: Save) -> None:
    found = text(compare([save(single(4.0), 0), save(whole(2, step_ms=1.0), 1)]))
    assert "a config that ran once has no interval" in found
    assert "whole-2 has the shortest step: 4.00x from one run each over single, the next" in found
    assert not re.search("faster|fastest|noise", found)


def test_nothing_is_ranked_where_a_run_cannot_be_judged(save: Save) -> None:
    unsure = whole(2, step_ms=1.0)
    unsure.steps["time_ms"] = [0.5, 4.0, 1.0, 9.0, 2.0] * 20
    judged = [save(make(), number) for number, make in enumerate((single, partial(whole, 4, step_ms=8.0)))]
    compared = compare([save(unsure, 9), *judged])
    found = text(compared)
    assert "nothing is ranked: too noisy to be judged: 1 run of whole-2; run them again" in found
    assert not re.search("fastest|shortest", found)
    assert re.search(r"^ +whole-2 +\d+ .* -  ", found, re.MULTILINE), "no speed-up of it"
    assert re.search(r"^ +whole-4 +\d+ .*x from one run each  ", found, re.MULTILINE), "two that are judged"
    runs = {f"{name}.r1": load_record(folder) for name, folder in zip("ab", judged, strict=True)}
    assert len(speed_ups(runs)) == 2
    assert [row["run"] for row in speed_ups({"a.r1": runs["a.r1"], "c.r1": unsure})] == [runs["a.r1"].run_id]


def test_runs_of_the_same_round_of_a_sweep_are_paired(save: Save) -> None:
    def interval(parent: str) -> Interval:
        shutil.rmtree(os.environ["DPEXP_HOME"] + "/runs", ignore_errors=True)
        folders = [
            save(make(step_ms=step_ms * drift), 10 * cell + number, parent=parent, name=f"{cell}.r{number}")
            for cell, (make, step_ms) in enumerate(((single, 2.0), (partial(whole, 2), 1.0)))
            for number, drift in enumerate((1.0, 1.5, 2.0))
        ]
        (group,) = compare(folders).groups
        return group.ranked[0].speed_up(group.baseline)

    assert (interval("sweep").low, interval("sweep").high) == pytest.approx((2.0, 2.0))
    assert interval("").low < 1.0


# --- refused -------------------------------------------------------------------------------------


def elsewhere() -> Record:
    record = whole(2)
    record.environment |= {"host": "cluster", "cpu": "Another CPU", "accelerators": [{"name": "H200"}] * 8}
    return record


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (partial(whole, 2, virtual=False), "real and virtual runs .* emulated devices share one CPU"),
        (elsewhere, "runs of different machines .*: cluster, Another CPU, 8 × H200; laptop, A CPU$"),
        (
            hybrid,
            "runs that do different work .*: model embedding / model linear; one --model for all makes",
        ),
    ],
)
def test_runs_of_other_executions_machines_and_work_are_refused(
    save: Save, other: Callable[[], Record], reason: str
) -> None:
    compared = compare([save(whole(2), 0), save(other(), 1)])
    assert [len(group.cells) for group in compared.groups] == [1, 1]
    (refusal,) = compared.refusals()
    assert re.match(reason, refusal)


def test_an_edited_file_is_not_a_repeat(save: Save) -> None:
    def folder(number: int, path: str, sha256: str) -> Path:
        record = whole(2)
        record.config |= {"model": "mine.py:Net", "layout": "layout.py:two"}
        return save(record, number, files=[{"path": path, "sha256": sha256}])

    edited = compare([folder(number, "mine.py", sha256) for number, sha256 in enumerate("aab")])
    assert [len(group.cells[0].runs) for group in edited.groups] == [1, 2]
    assert "contents mine.py b / contents mine.py a" in edited.refusals()[0]
    layouts = compare([folder(number + 3, "layout.py", sha256) for number, sha256 in enumerate("aab")])
    assert [len(cell.runs) for cell in layouts.groups[0].cells] == [2, 1]


def test_failed_and_unfinished_runs_are_left_out_with_the_reason(save: Save, dpexp_home: Path) -> None:
    error = {"type": "ValueError", "message": "no such thing", "traceback": ""}
    failed = save(whole(2), 0, status="failed", error=error)
    with Journal(dpexp_home / "runs", "feedfeedfeed") as journal:
        journal.set(name="half", status="running")
    empty = save(whole(2), 1, steps=Record().steps)
    compared = compare([failed, journal.folder, dpexp_home / "runs" / "nothing", empty])
    assert compared.groups == []
    reasons = [reason for _, reason in compared.left_out]
    assert "no journal" in reasons[0]
    assert sorted(reason[:28] for reason in reasons[1:]) == [
        "failed: no such thing",
        "finished: no measured steps",
        "killed: the process that rec",
    ]


# --- the script ----------------------------------------------------------------------------------


def test_all_runs_are_compared_or_those_named_and_a_sweep_stands_for_its_runs(save: Save) -> None:
    sweep = save(Record(name="a sweep", strategy="sweep", status="finished"), 0x100)
    for number, make in enumerate((single, partial(whole, 2)), 0x101):
        save(make(), number, parent=sweep.name, started=f"2026-01-02T00:00:0{number}")
    alone = save(hybrid(), 0x200, started="2026-01-01T00:00:00")

    def runs(*names: str) -> list[int]:
        done = script("report.py", *names)
        assert done.returncode == 0, done.stderr
        assert "Left out" not in done.stdout
        return [int(found, 16) for found in re.findall(r"\b0{9}\w{3}\b", done.stdout)]

    first, *rest = runs()
    assert (sorted([first, *rest[:1]]), rest[1:]) == ([0x101, 0x102], [0x200]), "the newest comparison first"
    assert sorted(runs(sweep.name)) == [0x101, 0x102]
    assert sorted(runs(str(alone), "last")) == [0x102, 0x200]

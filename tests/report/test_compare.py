"""Comparing runs: what is ranked, what is refused, and how sure a difference is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from record_factory import hybrid, whole

from dpexp.record import Journal, Record, finish, load
from dpexp.report.analysis.statistics import bootstrap, bootstrap_runs, ratio
from dpexp.report.compare import files, tables
from dpexp.report.compare.grouping import Comparison, compare
from dpexp.report.compare.run_records import KEYS, RunRecords
from dpexp.report.render import terminal

ROOT = Path(__file__).resolve().parents[2]
Save = Callable[..., Path]


@pytest.fixture
def save(dpexp_home: Path) -> Save:
    """Writes a Record as the run that it is, journal and all, and returns its folder."""

    def write(record: Record, number: int = 0, **changes: object) -> Path:
        for key, value in changes.items():
            setattr(record, key, value)
        record.run_id = f"{number:012x}"
        with Journal(dpexp_home / "runs", record.run_id) as journal:
            journal.set(
                {key: value for key, value in record.to_dict().items() if key not in ("summary", "damage")}
            )
        finish(journal.path)
        return journal.folder

    return write


def single(step_ms: float = 2.0, **more: object) -> Record:
    """A virtual run of single, to be the baseline."""
    made = whole(1, step_ms=step_ms)
    made.strategy, made.name = "single", "single"
    made.config |= {"strategy": "single"}
    for key, value in more.items():
        setattr(made, key, value)
    return made


def words(compared: Comparison) -> str:
    return terminal.text(tables.sections(compared), width=200, color=False)


# --- ranked --------------------------------------------------------------------------------------


def test_runs_are_ranked_fastest_first_over_the_single_device(save: Save) -> None:
    folders = [save(single(2.0), 0), save(whole(2, step_ms=1.0), 1), save(whole(4, step_ms=4.0), 2)]
    compared = compare(folders)
    (group,) = compared.groups
    assert [cell.first.name for cell in group.ranked] == ["whole-2", "single", "whole-4"]
    assert group.baseline.first.name == "single"
    gained = group.ranked[0].speed_up(group.baseline)
    assert gained.low < 2.0 < gained.high
    assert "whole-2 is the fastest: 2.00x [1.9" in words(compared)
    assert tables.verdict(group.ranked[2].speed_up(group.baseline)) == "slower"


def test_a_difference_within_the_noise_is_called_that(save: Save) -> None:
    compared = compare([save(single(2.0), 0), save(whole(2, step_ms=2.001), 1)])
    assert "within the noise of one another" in words(compared)
    assert "within the noise" in words(compared).splitlines()[-1]


def test_the_last_uneven_batch_does_not_enter_the_step_time(save: Save) -> None:
    (group,) = compare([save(whole(2, step_ms=1.0), 0)]).groups
    assert group.cells[0].step_ms["n"] == 75
    assert group.cells[0].samples_per_s == pytest.approx(30_000, rel=0.02)


def test_repeats_of_a_config_are_one_cell_whose_interval_knows_their_spread(save: Save) -> None:
    base = [save(single(2.0), number) for number in range(3)]
    spread = [save(whole(2, step_ms=ms), 10 + number) for number, ms in enumerate((0.9, 1.0, 1.4))]
    (group,) = compare([*base, *spread]).groups
    assert sorted(len(cell.runs) for cell in group.cells) == [3, 3]
    gained = group.ranked[0].speed_up(group.baseline)
    assert gained.high - gained.low > 0.3
    assert "x 3" in words(compare([*base, *spread]))


def test_each_config_run_once_is_said_to_lack_the_spread_between_runs(save: Save) -> None:
    assert "not that between runs" in words(compare([save(single(), 0), save(whole(2), 1)]))


def test_a_cell_that_is_too_noisy_is_named(save: Save) -> None:
    noisy = whole(2)
    noisy.steps["time_ms"] = [1.0 if number % 2 else 3.0 for number in range(100)]
    said = words(compare([save(single(), 0), save(noisy, 1)]))
    assert "too noisy to compare closely: whole-2 (IQR" in said
    assert "single (IQR" not in said


# --- refused -------------------------------------------------------------------------------------


def test_virtual_is_not_ranked_against_real(save: Save) -> None:
    compared = compare([save(whole(2), 0), save(whole(2, virtual=False), 1)])
    assert [len(group.cells) for group in compared.groups] == [1, 1]
    assert "emulated devices share one CPU" in compared.refusals()[0]


def test_different_machines_are_not_ranked(save: Save) -> None:
    other = whole(2)
    other.environment |= {"host": "cluster", "cpu": "Another CPU"}
    compared = compare([save(whole(2), 0), save(other, 1)])
    assert len(compared.groups) == 2
    assert compared.refusals() == [
        "runs of different machines are not ranked against each other: laptop, A CPU; cluster, Another CPU"
    ]


def test_different_work_is_not_ranked(save: Save) -> None:
    compared = compare([save(whole(2), 0), save(hybrid(), 1)])
    assert compared.refusals() == [
        "runs that do different work are not ranked against each other: model linear / embedding"
    ]


def test_failed_and_unfinished_runs_are_left_out_with_their_reason(save: Save, dpexp_home: Path) -> None:
    error = {"type": "ValueError", "message": "no such thing", "traceback": ""}
    failed = save(whole(2), 0, status="failed", error=error)
    with Journal(dpexp_home / "runs", "feedfeedfeed") as journal:
        journal.set(name="half", status="running")
    compared = compare([failed, journal.folder, dpexp_home / "runs" / "nothing"])
    assert compared.groups == []
    assert compared.left_out[0] == ("whole-2", "failed: no such thing")
    assert compared.left_out[1][0] == "half"
    assert "no journal" in compared.left_out[2][1]


# --- files ---------------------------------------------------------------------------------------


def test_out_writes_markdown_html_and_pictures(save: Save, tmp_path: Path) -> None:
    folders = [save(single(), 0), *(save(whole(count, step_ms=2.0 / count), count) for count in (2, 4))]
    written = files.write(compare(folders), tmp_path / "out")
    assert {path.name for path in written} == {"report.md", "report.html", "phases-1.png", "scaling.png"}
    text = (tmp_path / "out" / "report.md").read_text()
    assert "![scaling](scaling.png)" in text
    assert "| whole-4 | whole | 4 | virtual |" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page


def test_markup_in_names_stays_text_in_a_comparison(save: Save, tmp_path: Path) -> None:
    save_as = "<script>alert(1)</script>"
    files.write(compare([save(whole(2, name=save_as), 0)]), tmp_path)
    assert "<script" not in (tmp_path / "report.html").read_text()
    assert "<script" not in (tmp_path / "report.md").read_text()


# --- many ----------------------------------------------------------------------------------------


def test_a_brief_holds_what_the_whole_record_holds(save: Save) -> None:
    folder = save(whole(2), 0)
    brief, record = RunRecords().read(folder), load(folder)
    for key in KEYS:
        assert getattr(brief, key.decode()) == getattr(record, key.decode())
    assert brief.timeline == []


def test_a_record_that_other_hands_wrote_is_read_all_the_same(save: Save) -> None:
    folder = save(whole(2), 0)
    record = load(folder)
    (folder / "record.json").write_text(json.dumps(record.to_dict(), indent=4))
    assert RunRecords().read(folder).steps == record.steps


def test_numbers_that_json_does_not_have_are_read(save: Save) -> None:
    made = whole(2)
    made.steps["loss"][0] = float("inf")
    assert RunRecords().read(save(made, 0)).steps["loss"][0] == float("inf")


def test_many_cells_are_cut_to_the_fastest_and_the_baseline(save: Save) -> None:
    folders = [save(single(100.0), 0)]
    for number in range(1, 60):
        made = whole(2, step_ms=float(number))
        made.config["lr"] = float(number)
        folders.append(save(made, number))
    (group,) = compare(folders).groups
    shown = tables.shown(group)
    assert len(shown) == tables.SHOWN
    assert shown[-1] is group.baseline
    assert "and 20 more rows" in words(compare(folders))


# --- intervals -----------------------------------------------------------------------------------


def test_the_interval_holds_the_true_ratio_in_most_of_many_trials() -> None:
    source, held = random.Random(0), 0
    for trial in range(200):
        first = [source.gauss(2.0, 0.3) for _ in range(50)]
        second = [source.gauss(1.0, 0.15) for _ in range(50)]
        held += 2.0 in bootstrap(ratio, first, second, seed=trial)
    assert 180 <= held <= 199


def test_the_interval_is_the_same_for_the_same_samples() -> None:
    samples = [1.0, 1.2, 0.9, 1.1] * 10
    assert bootstrap(ratio, samples, samples) == bootstrap(ratio, samples, samples)


def test_runs_that_differ_among_each_other_widen_the_interval() -> None:
    steady, shifted = [1.0, 1.01] * 20, [2.0, 2.01] * 20
    apart = bootstrap_runs(ratio, [steady, shifted, steady], [steady])
    pooled = bootstrap(ratio, steady, steady)
    assert apart.high - apart.low > 10 * (pooled.high - pooled.low)


def test_runs_of_unequal_length_are_resampled_within_their_own_samples() -> None:
    interval = bootstrap_runs(ratio, [[2.0] * 5, [2.0] * 500], [[1.0] * 3])
    assert (interval.value, interval.low, interval.high) == (2.0, 2.0, 2.0)


# --- the script ----------------------------------------------------------------------------------


def script(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DPEXP_HOME": str(home)}
    command = [sys.executable, "scripts/report.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_the_script_compares_runs_by_id_prefix_name_and_folder(
    save: Save, dpexp_home: Path, tmp_path: Path
) -> None:
    first, second = save(single(2.0), 0xA), save(whole(2, step_ms=1.0), 0xB)
    done = script(dpexp_home, "single", second.name, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "2 configs" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()
    assert "2 configs" in script(dpexp_home, str(first), "whole-2").stdout
    assert "2 configs" in script(dpexp_home).stdout


def test_a_run_that_is_not_there_ends_with_2_and_one_line(save: Save, dpexp_home: Path) -> None:
    save(whole(2), 0)
    done = script(dpexp_home, "whole-3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run 'whole-3'")
    assert done.stdout == ""


def test_no_run_at_all_ends_with_2_and_says_how_to_make_one(dpexp_home: Path) -> None:
    done = script(dpexp_home)
    assert done.returncode == 2
    assert "scripts/run.py" in done.stderr

"""Comparing runs: which are ranked, which are refused, and how certain a difference is."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_lines import python
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from record_factory import hybrid, whole

from dpexp import report
from dpexp.record.figures import summarize
from dpexp.record.journal import Journal
from dpexp.record.record import Record, finish
from dpexp.record.runs import RunSummary
from dpexp.report import comparison_page, data, listing, table, terminal, units
from dpexp.report.compare import Comparison, compare
from dpexp.report.comparison_page import scaling_figure, stacked_phases_figure
from dpexp.report.intervals import Interval
from dpexp.report.table import shown_cells
from dpexp.tracking.content.content import summary_metrics

Save = Callable[..., Path]


@pytest.fixture
def save(dpexp_home: Path) -> Save:
    """Writes a Record as a finished run, with its journal, and returns the run's folder."""

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


def single(step_ms: float = 2.0) -> Record:
    """A virtual run of ``single``: the baseline."""
    record = whole(1, step_ms=step_ms)
    record.strategy, record.name = "single", "single"
    record.config |= {"strategy": "single"}
    return record


def text(compared: Comparison) -> str:
    return terminal.terminal_text(table.comparison_sections(compared), width=200, color=False)


# --- ranked --------------------------------------------------------------------------------------


def test_runs_are_ranked_fastest_first_over_the_single_device(save: Save) -> None:
    cells = ((single, 2.0), (partial(whole, 2), 1.0), (partial(whole, 4), 4.0))
    compared = compare(
        [
            save(make(step_ms=step_ms * wobble), 10 * number + run)
            for number, (make, step_ms) in enumerate(cells)
            for run, wobble in enumerate((1.0, 1.01, 0.99))
        ]
    )
    (group,) = compared.groups
    assert [cell.first.name for cell in group.ranked] == ["whole-2", "single", "whole-4"]
    assert group.baseline.first.name == "single"
    speed_up = group.ranked[0].speed_up(group.baseline)
    assert speed_up.low < 2.0 < speed_up.high
    assert "whole-2 x 3 is the fastest: 2.00x [1.9" in text(compared)
    assert table.comparison_verdict(group.ranked[2].speed_up(group.baseline)) == "slower"
    assert "a drift of the machine between them looks like a difference" in text(compared)


def test_a_difference_within_the_noise_is_not_ranked(save: Save) -> None:
    folders = [save(single(ms), number) for number, ms in enumerate((2.0, 2.01))]
    compared = compare([*folders, *(save(whole(2, step_ms=ms), 10 + n) for n, ms in enumerate((1.99, 2.03)))])
    assert "within the noise of one another" in text(compared)
    assert re.search(r"within the noise, \d+% would show ", text(compared).splitlines()[-1])
    assert "is found by four of five comparisons" in text(compared)
    (*_, slower) = data.comparison_rows(compared)
    assert slower["speed_up_seen"] > slower["speed_up_high"] / slower["speed_up"] > 1


def test_a_run_has_one_step_time_and_one_rate_everywhere(save: Save) -> None:
    """As in an epoch whose last batch is small and slow: a mean over all steps would be another figure."""
    record = whole(2)
    record.steps["time_ms"] = [1.25 if rows == 30 else 80.0 for rows in record.steps["samples"]]
    summarize(record)
    compared = compare([save(record, 0)])
    cell = compared.groups[0].cells[0]
    summary = report.summary(record, width=100)
    listed = listing.runs([RunSummary.of(record)], {})
    metrics = summary_metrics(record)
    (row,) = data.comparison_rows(compared)
    assert (cell.step_ms["median"], row["step_ms"], row["samples_per_s"]) == (1.25, 1.25, 24_000)
    assert (metrics["step_ms"], metrics["samples_per_s"]) == (1.25, 24_000)
    assert cell.step_ms["n"] == 75
    assert "1.25 ms" in summary
    assert "24,000 samples/s" in summary
    assert " 1.25 " in listed


def test_a_comparison_is_data_with_the_numbers_of_its_table(save: Save) -> None:
    repeats = [save(single(ms), number) for number, ms in enumerate((2.0, 2.02))]
    use = {
        "work": {"rows": 30, "flops": {"forward": 10**6}},
        "memory_use": [{"device": "cpu", "activations": 9}],
    }
    faster = [whole(2, step_ms=ms, **use) for ms in (1.0, 1.01)]
    repeats += [save(record, 10 + number) for number, record in enumerate(faster)]
    compared = compare([*repeats, save(whole(4), 20, status="failed")])
    found = json.loads(data.comparison_json(compared))
    fastest, baseline = found["configs"]
    assert (fastest["name"], fastest["runs"]) == ("whole-2", ["00000000000a", "00000000000b"])
    assert fastest["speed_up_low"] < fastest["speed_up"] < fastest["speed_up_high"]
    assert f"{fastest['speed_up']:.2f}x" in text(compared)
    assert (baseline["is_baseline"], baseline["speed_up"], baseline["speed_up_low"]) == (True, 1.0, None)
    assert fastest["flops_per_s"] == pytest.approx(1e9 / fastest["step_ms"])
    assert (fastest["activation_bytes"], baseline["activation_bytes"]) == (9, None)
    assert baseline["flops_per_s"] is None
    assert [row["run"] for row in found["left_out"]] == ["whole-4"]
    lines = [*csv.DictReader(io.StringIO(data.to_csv(compared)))]
    assert [(line["name"], float(line["step_ms"])) for line in lines] == [
        (row["name"], row["step_ms"]) for row in found["configs"]
    ]
    assert (lines[0]["runs"], lines[1]["verdict"]) == ("00000000000a 00000000000b", "")
    diverged = whole(4)
    diverged.verification |= {"gradient_error": float("nan")}
    (row,) = json.loads(data.comparison_json(compare([save(diverged, 30)])))["configs"]
    assert row["gradient_error"] == "nan"
    assert (data.to_csv(compare([])), data.comparison_rows(compare([]))) == ("", [])


def test_repeats_of_a_config_form_one_cell_whose_interval_includes_their_spread(save: Save) -> None:
    base = [save(single(2.0), number) for number in range(3)]
    spread = [save(whole(2, step_ms=ms), 10 + number) for number, ms in enumerate((0.9, 1.0, 1.4))]
    (group,) = compare([*base, *spread]).groups
    assert sorted(len(cell.runs) for cell in group.cells) == [3, 3]
    speed_up = group.ranked[0].speed_up(group.baseline)
    assert speed_up.high - speed_up.low > 0.3
    assert "x 3" in text(compare([*base, *spread]))


def test_an_interval_of_two_runs_that_differ_much_hides_nothing_else(save: Save) -> None:
    folders = [save(single(2.0), number) for number in range(2)]
    folders += [save(whole(2, step_ms=ms), 10 + number) for number, ms in enumerate((0.1, 9.0))]
    compared = compare(folders)
    assert "[<0.01, >100]" in text(compared)
    figure = scaling_figure(compared.groups[0])
    assert figure is not None
    bottom, top = figure.axes[0].get_ylim()
    assert 0.05 < bottom < 1 < top < 50


def test_runs_of_a_cell_do_not_add_up_their_rates(save: Save) -> None:
    (one,) = data.comparison_rows(compare([save(whole(2), 0)]))
    (three,) = data.comparison_rows(compare([save(whole(2), number) for number in (1, 2, 3)]))
    assert len(three["runs"]) == 3
    assert three["samples_per_s"] == pytest.approx(one["samples_per_s"])


def test_the_memory_of_a_cell_is_the_largest_of_its_runs(save: Save) -> None:
    records = [whole(2) for _ in range(2)]
    for record, peak in zip(records, (3_000_000, 5_000_000), strict=True):
        record.memory = {"cpu": peak}
    (group,) = compare([save(record, number) for number, record in enumerate(records)]).groups
    assert group.cells[0].memory() == {"cpu": 5_000_000}


def test_cells_of_one_run_have_figures_and_neither_interval_nor_verdict(save: Save) -> None:
    found = text(compare([save(single(4.0), 0), save(whole(2, step_ms=1.0), 1)]))
    assert "a config that ran once has no interval" in found
    assert "whole-2 has the shortest step: 4.00x from one run each over single, the next" in found
    assert not re.search("faster|fastest|noise", found)


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


def test_noisy_cells_are_named(save: Save) -> None:
    noisy = whole(2)
    noisy.steps["time_ms"] = [1.0 if number % 2 else 3.0 for number in range(100)]
    report = text(compare([save(single(), 0), save(noisy, 1)]))
    assert "too noisy to compare closely: whole-2 (IQR" in report
    assert "single (IQR" not in report


def test_real_devices_have_an_efficiency_and_emulated_ones_none(save: Save) -> None:
    def runs(virtual: bool, number: int) -> list[Path]:
        one, four = (whole(count, virtual=virtual, step_ms=ms) for count, ms in ((1, 3.0), (4, 1.0)))
        four.config |= {"devices": "4"}
        return [save(one, number), save(four, number + 1)]

    real, emulated = text(compare(runs(False, 0))), text(compare(runs(True, 10)))
    assert re.search(r"3.00x from one run each +75%", real)
    assert re.search(r"baseline +100%", real)
    assert "efficiency" not in emulated


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
        "runs that do different work are not ranked against each other: model linear / embedding; "
        "one --model for all makes them comparable"
    ]


def test_failed_and_unfinished_runs_are_left_out_with_the_reason(save: Save, dpexp_home: Path) -> None:
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


def test_out_writes_markdown_html_and_figures(save: Save, tmp_path: Path) -> None:
    folders = [save(single(), 0), *(save(whole(count, step_ms=2.0 / count), count) for count in (2, 4))]
    written = comparison_page.write_comparison(compare(folders), tmp_path / "out")
    assert {path.name for path in written} == {"report.md", "report.html", "phases-1.png", "scaling-1.png"}
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "![scaling-1](scaling-1.png)" in markdown
    assert "| whole-4 | 000000000004 | whole | 4 | virtual |" in markdown
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg ") == page.count('role="img"') == 2
    drawn = page.partition("<svg ")[2]
    assert not re.search("#(?:1b1f24|5a6472|c9ced6|fbfbfc)", drawn, re.IGNORECASE), "colours of one theme"
    assert "http" not in page


def test_the_figures_of_a_comparison_name_its_cells(save: Save) -> None:
    records = [single(), *(whole(count, step_ms=1.9) for count in (2, 4, 8))]
    for record in records:
        record.environment["host"] = "a-very-long-host-name.cluster.example.org"
    group = compare([save(record, number) for number, record in enumerate(records)]).groups[0]
    phases, scaling = stacked_phases_figure(group), scaling_figure(group)
    assert phases is not None
    assert scaling is not None
    labels = [label.get_text() for label in phases.axes[0].get_yticklabels()]
    assert {label.partition("\n")[0] for label in labels} == {"single", "whole-2", "whole-4", "whole-8"}
    assert "whole" in {text.get_text() for text in scaling.axes[0].get_legend().get_texts()}
    assert [tick.get_text() for tick in scaling.axes[0].get_xticklabels()] == ["1", "2", "4", "8"]
    title = " ".join(text.get_text() for text in phases.findobj(Text))
    assert "virtual on a-very-long-host-name.cluster.example.org" in title.replace("\n", " ")


def test_bars_of_phases_are_as_long_as_the_step_times_of_the_table(save: Save) -> None:
    """Where the phase-timed steps were slower, too; and a run that cannot be judged is not divided."""
    noisy = whole(4, step_ms=3.0)
    noisy.steps["time_ms"] = [ms * 3.0 ** (step % 11 - 5) for step, ms in enumerate(noisy.steps["time_ms"])]
    records = [single(step_ms=1.0), whole(2, step_ms=2.0), noisy]
    group = compare([save(record, number) for number, record in enumerate(records)]).groups[0]
    figure = stacked_phases_figure(group)
    assert figure is not None
    lengths, counts = Counter[int](), Counter[int]()
    for bar in (patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)):
        lengths[round(bar.get_y() + 0.33)] += bar.get_width()
        counts[round(bar.get_y() + 0.33)] += 1
    shown = {cell.devices: (lengths[row], counts[row]) for row, cell in enumerate(shown_cells(group))}
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    for cell in group.cells:
        assert shown[cell.devices][0] == pytest.approx(cell.typical_ms)
        assert units.ms(cell.typical_ms) in texts
    assert shown[1][1] > 2 < shown[2][1]
    assert shown[4][1] == 1
    assert texts.count("too noisy to divide") == 1


def test_the_figures_of_each_comparison_stand_beside_its_table(save: Save, tmp_path: Path) -> None:
    folders = [save(make(), number) for number, make in enumerate((single, partial(whole, 2)))]
    for number, make in enumerate((single, partial(whole, 2)), start=10):
        record = make()
        record.config["batch_size"] = 60
        folders.append(save(record, number))
    comparison_page.write_comparison(compare(folders), tmp_path)
    page, markdown = ((tmp_path / f"report.{kind}").read_text() for kind in ("html", "md"))
    found = re.findall(r"Comparison \d|phases-\d|scaling-\d|Not ranked", page)
    assert found[:3] == ["Comparison 1", "phases-1", "scaling-1"]
    assert found[3:] == ["Comparison 2", "phases-2", "scaling-2", "Not ranked"]
    assert re.findall(r"### Comparison \d|\((\w+-\d).png", markdown)[:3] == ["", "phases-1", "scaling-1"]


def test_a_comparison_has_run_ids_and_dates(save: Save) -> None:
    folders = [save(single(ms), 16**11 * number) for number, ms in enumerate((2.0, 2.1, 2.2), start=1)]
    folders.append(save(whole(2), 16**11 * 9, started="2026-01-03T09:00:00.000+00:00"))
    found = text(compare(folders))
    assert "30 rows; 2026-01-02 03:04 to 2026-01-03 09:00" in found
    assert re.search(r"single x 3 +10000000 \+2 ", found)
    assert re.search(r"whole-2 +90000000 +whole ", found)


# --- the newest ----------------------------------------------------------------------------------


@pytest.fixture
def swept(save: Save) -> Save:
    """Saves a sweep of two configs and two rounds that began at an hour of a day; returns its folder."""

    def write(number: int, hour: int, question: str) -> Path:
        sweep = Record(name=f"sweep of {question}", strategy="sweep", status="finished")
        sweep.config, sweep.started = {"question": question}, f"2026-01-02T{hour:02}:00:00.000+00:00"
        folder = save(sweep, number)
        for child in range(4):
            record = (single if child % 2 else partial(whole, 2))()
            name = f"{record.strategy}.r{child // 2 + 1}"
            started = f"2026-01-02T{hour:02}:0{child}:00.000+00:00"
            save(record, number + 1 + child, parent=folder.name, name=name, started=started)
        return folder

    return write


def test_without_a_name_the_newest_comparison_is_shown_and_a_line_for_each_other(
    save: Save, swept: Save, dpexp_home: Path
) -> None:
    old, new = swept(0x100, 7, "whole single --virtual 1,2 " + "--model mlp " * 9), swept(0x200, 8, "whole")
    save(hybrid(), 0x300, started="2026-01-05T00:00:00.000+00:00")
    save(whole(2), 0x400, started="2026-01-01T00:00:00.000+00:00")
    save(whole(4), 0x401, status="failed", started="2026-01-01T00:00:01.000+00:00")
    done = script(dpexp_home)
    assert done.returncode == 0, done.stderr
    shown, _, others = done.stdout.partition("Other comparisons\n")
    assert "Comparison 1: 2 configs" in shown
    assert "2026-01-02 08:00 to 08:03" in shown, "a run of one config alone is no comparison"
    assert new.name not in others
    lines = others.splitlines()
    assert [re.sub(" +", " ", line).strip()[:60] for line in lines[:3]] == [
        "2026-01-05 00:00 0000000003 1 run, 1 config hybrid-1, embedding, rando"[:60],
        f"2026-01-02 07:03 {old.name} 4 runs, 2 configs whole single --virtual 1"[:60],
        "2026-01-01 00:00 000000000401 2 runs, 2 configs linear, random"[:60],
    ]
    assert max(map(len, lines)) <= 80
    assert "to show one: python scripts/report.py RUN" in lines[3]


def test_a_sweep_is_named_by_its_id_and_one_run_stands_for_those_that_belong_with_it(
    save: Save, swept: Save, dpexp_home: Path
) -> None:
    old, _, alone = swept(0x100, 7, "whole"), swept(0x200, 8, "whole"), save(whole(4), 0x300)

    def runs(*names: str) -> list[str]:
        configs = json.loads(script(dpexp_home, "--json", *names).stdout)["configs"]
        return sorted(run for config in configs for run in config["runs"])

    assert runs(old.name) == runs("000000000103") == [f"{number:012x}" for number in range(0x101, 0x105)]
    assert runs(old.name, alone.name) == [*runs(old.name), alone.name]
    assert runs("000000000103", alone.name) == ["000000000103", alone.name]
    assert runs() == [f"{number:012x}" for number in range(0x201, 0x205)]


def test_markup_in_names_stays_text_in_a_comparison(save: Save, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    comparison_page.write_comparison(compare([save(whole(2, name=name), 0)]), tmp_path)
    assert "<script" not in (tmp_path / "report.html").read_text()
    assert "<script" not in (tmp_path / "report.md").read_text()


def test_an_edited_file_is_not_a_repeat(save: Save) -> None:
    def folder(number: int, path: str, sha256: str) -> Path:
        record = whole(2)
        record.config |= {"model": "mine.py:Net", "layout": "layout.py:two"}
        return save(record, number, files=[{"path": path, "sha256": sha256}])

    edited = compare([folder(number, "mine.py", sha256) for number, sha256 in enumerate("aab")])
    assert [len(group.cells[0].runs) for group in edited.groups] == [2, 1]
    assert "contents mine.py a / mine.py b" in edited.refusals()[0]
    layouts = compare([folder(number + 3, "layout.py", sha256) for number, sha256 in enumerate("aab")])
    assert [len(cell.runs) for cell in layouts.groups[0].cells] == [2, 1]


# --- many runs -----------------------------------------------------------------------------------


def test_many_cells_are_cut_to_the_fastest_and_the_baseline(save: Save) -> None:
    folders = [save(single(100.0), 0)]
    for number in range(1, 60):
        record = whole(2, step_ms=float(number))
        record.config["lr"] = float(number)
        folders.append(save(record, number))
    (group,) = compare(folders).groups
    shown = table.shown_cells(group)
    assert len(shown) == table.SHOWN
    assert shown[-1] is group.baseline
    assert "and 20 more rows" in text(compare(folders))


# --- the script ----------------------------------------------------------------------------------


def script(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("scripts/report.py", *arguments, DPEXP_HOME=str(home))


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


def test_an_unknown_run_exits_with_2_and_one_line(save: Save, dpexp_home: Path) -> None:
    save(whole(2), 0)
    done = script(dpexp_home, "whole-3")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no run 'whole-3'")
    assert done.stdout == ""


def test_no_run_at_all_exits_with_2_and_names_the_script_to_run(dpexp_home: Path) -> None:
    done = script(dpexp_home)
    assert done.returncode == 2
    assert "scripts/run.py" in done.stderr


def test_report_prints_data_and_nothing_else(save: Save) -> None:
    save(whole(2), 1)
    printed = python("scripts/report.py", "--csv")
    assert [line["name"] for line in csv.DictReader(io.StringIO(printed.stdout))] == ["whole-2"]
    assert len(json.loads(python("scripts/report.py", "--json").stdout)["configs"]) == 1
    assert python("scripts/report.py", "--csv", "--json").returncode == 2

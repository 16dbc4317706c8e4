"""The registry of figures: what has one name is one number, on every screen."""

import csv
import io
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_factory import PHASES, hybrid, time_phases, whole

from dpexp import report
from dpexp.record.figures import FIGURES, At, figures, summarize
from dpexp.record.journal import Journal
from dpexp.record.record import Record
from dpexp.record.runs import RunSummary
from dpexp.record.view import RecordView
from dpexp.report import data, listing, table, terminal, units
from dpexp.report.compare import compare
from dpexp.study.experiment.metrics import value
from dpexp.study.experiment.records import MeasuredRun
from dpexp.tracking.content import content

Numbers = dict[str, float]
NAMES = {figure.name for figure in FIGURES}
RATES = {"median": 8e9, "iqr": 1e9, "min": 7e9, "max": 1e10, "n": 5}
PEAK = {"device": "a CPU", "dtype": "float32", "threads": 2, "size": 64, "devices": 1, "flops_per_s": RATES}
WORK = {"rows": 30, "flops": {"forward": 500_000, "backward": 1_500_000}, "tokens": 480, "peak": PEAK}
MEMORY_USE = [{"device": f"cpu:{index}", "parameters": 48, "activations": 480 + index} for index in (0, 1)]


KINDS: dict[str, Callable[[], Record]] = {
    "whole": lambda: whole(2),
    "whole, real": lambda: whole(2, virtual=False),
    "of equal batches": lambda: whole(4, batches=(32, 32)),
    "with its work": lambda: whole(2, work=WORK, memory_use=MEMORY_USE),
    "hybrid": lambda: hybrid(sparse=True),
    "not verified": lambda: whole(2, verification={"checked": False}),
    "with metrics": lambda: whole(2, metrics={"accuracy": [0.5, 0.75], "loss": [0.7, float("nan")]}),
    "passed through": lambda: whole(1, execution="passthrough"),
}


def unequal(record: Record) -> Record:
    """The record with phases over two epochs, in which each step takes another time."""
    phases = {name: times[0] for name, times in record.phases.items()}
    record.timeline, record.phases = [], {}
    time_phases(record, phases, [], 0.0, steps=8)
    for times in record.phases.values():
        times[:] = [ms * (1 + number) for number, ms in enumerate(times)]
    summarize(record)
    return record


def stored(record: Record, home: Path) -> tuple[Path, Record]:
    """The folder of the record's run, and the Record as it is read from there."""
    with Journal(home / "runs", record.run_id) as journal:
        journal.set({key: each for key, each in record.to_dict().items() if key != "summary"})
    return journal.folder, Record.load(journal.folder)


def flat(path: str, found: Any) -> Numbers:
    """{path of each number: it}"""
    if isinstance(found, dict):
        below = (flat(f"{path}/{key}", each).items() for key, each in found.items())
        return dict(itertools.chain.from_iterable(below))
    return {path.removesuffix("/median"): float(found)} if isinstance(found, int | float) else {}


def screens(folder: Path, record: Record) -> dict[str, Numbers]:
    """{screen that shows numbers as they are: {figure: its number}}; of samples the median."""
    (row,) = csv.DictReader(io.StringIO(data.to_csv(compare([folder]))))
    run = [MeasuredRun("cell", 1, record)]
    claims = {"step_ms": value("step_ms", run), "peak_bytes": value("peak_bytes", run)}
    claims |= {f"phases_ms/{name}": value(f"phase_ms:{name}", run) for name in record.phases}
    return {
        "the Record": flat("", record.summary),
        "the list": flat("", RunSummary.of(record).figures),
        "the CSV": {f"/{name}": float(text) for name, text in row.items() if name in NAMES and text},
        "the claims": {f"/{name}": number for name, number in claims.items()},
    }


def assert_agreement(folder: Path, record: Record) -> None:
    """Numbers of one name are equal on all screens, and what is read is these numbers."""
    shown = screens(folder, record)
    assert all("/step_ms" in numbers for numbers in shown.values())
    for name in set().union(*shown.values()):
        first, *others = (numbers[name] for numbers in shown.values() if name in numbers)
        assert others == pytest.approx([first] * len(others), nan_ok=True), name
    assert_metrics(record, shown["the Record"])
    assert_texts(folder, record, shown["the Record"])


def assert_metrics(record: Record, known: Numbers) -> None:
    """The single metrics of MLflow are rounded numbers of the Record."""
    metrics = content.summary_metrics(record)
    shared = {name for name in metrics if f"/{name}" in known}
    assert {"step_ms", "samples_per_s", "phase_coverage"} <= shared
    for name in shared:
        assert metrics[name] == pytest.approx(float(f"{known[f'/{name}']:.4g}"), nan_ok=True), name
    phases = {name: metrics[f"phases_ms/{name}"] for name in record.phases if f"phases_ms/{name}" in metrics}
    assert len(phases) == min(len(record.phases), content.MOST_PHASES)
    assert metrics["peak_MB"] == float(f"{max(record.memory.values()) / 1e6:.4g}")
    assert metrics["bytes_moved"] == value("moved_bytes", [MeasuredRun("cell", 1, record)])
    if errors := RecordView(record).errors:
        assert metrics["max_error"] == float(f"{max(errors.values()):.2g}")


def assert_texts(folder: Path, record: Record, known: Numbers) -> None:
    """Terminal, note, page, list and comparison read as these numbers."""
    text, note, page = report.summary(record, width=400, full=True), report.note(record), report.html(record)
    step, rate = units.ms(known["/step_ms"]), units.number(known["/samples_per_s"])
    for words in (text, note, page):
        assert f"{step} a step, IQR " in words
        assert f"{rate} samples/s" in words
    assert f" {step} ± " in listing.runs([RunSummary.of(record)], {})
    assert f" {rate} " in terminal.terminal_text(table.comparison_sections(compare([folder])), width=250)
    for name in record.phases:
        median = units.ms(known[f"/phases_ms/{name}"])
        assert re.search(rf"^ +{name} .*% +{median} \[IQR", text, re.MULTILINE), name
        assert re.search(rf"^ *{name} .*% +{median} \[IQR", note, re.MULTILINE), name
        assert re.search(rf">{name}</td>.*?<td>{median} \[IQR", page), name
    assert f"cover {units.percent(known['/phase_coverage'])} of it" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_one_number_wherever_it_stands(kind: str, dpexp_home: Path) -> None:
    assert_agreement(*stored(unequal(KINDS[kind]()), dpexp_home))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 4),
    most=st.integers(2, 40),
    rest=st.integers(0, 39),
    full=st.integers(1, 4),
    scale=st.floats(0.01, 500),
)
def test_figures_agree_for_any_batches_and_times(
    dpexp_home: Path, count: int, most: int, rest: int, full: int, scale: float
) -> None:
    batches = (most,) * full + ((rest,) if 0 < rest < most else ())
    record = whole(count, batches=batches, phases={name: scale * ms for name, ms in PHASES.items()})
    record.run_id = f"{len(list(dpexp_home.glob('runs/*'))):012x}"
    assert_agreement(*stored(unequal(record), dpexp_home))


def test_every_figure_stands_somewhere_under_a_name_of_its_own() -> None:
    assert len(NAMES) == len(FIGURES) > 20
    assert all(figure.at for figure in FIGURES)
    for at in At:
        assert list(figures(at)), at


def test_phases_are_of_the_full_batches() -> None:
    """The fourth and the eighth step have 10 rows; the median of 1, 2, 3, 5, 6, 7 times 0.1 ms is 0.4 ms."""
    assert unequal(whole(2)).summary["phases_ms"]["replicate"] == pytest.approx(0.4)

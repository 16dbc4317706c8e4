"""The figures: what has one name is one number, wherever numbers are shown as they are."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.record_factory import hybrid, whole

from dpexp.record.figures import FIGURES, At, figures, largest
from dpexp.record.fold import load_record
from dpexp.record.journal import Journal
from dpexp.record.record import Record
from dpexp.record.runs import RunSummary
from dpexp.record.view import RecordView
from dpexp.study.metrics import metric, value
from dpexp.tracking import content

WORK = {"rows": 30, "flops": {"forward": 500_000, "backward": 1_500_000}, "tokens": 480}
MEMORY_USE = [{"device": f"cpu:{index}", "parameters": 48} for index in (0, 1)]
KINDS: dict[str, Callable[[], Record]] = {
    "whole": lambda: whole(2),
    "whole, real": lambda: whole(2, virtual=False),
    "of equal batches": lambda: whole(4, batches=(32, 32)),
    "with its work": lambda: whole(2, work=WORK, memory_use=MEMORY_USE),
    "hybrid": lambda: hybrid(sparse=True),
    "not verified": lambda: whole(2, verification={"checked": False}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_one_number_wherever_it_is_shown(kind: str, dpexp_home: Path) -> None:
    made = KINDS[kind]()
    with Journal(dpexp_home / "runs", made.run_id) as journal:
        journal.set({key: each for key, each in made.to_dict().items() if key != "summary"})
    record = load_record(journal.folder)
    view = RecordView(record)
    run = {1: view}
    known = {figure.name: number for figure in FIGURES if (number := figure.number(view)) is not None}
    summary = record.summary | {"step_ms": record.summary["step_ms"]["median"]}
    screens = {
        "the Record": {name: each for name, each in summary.items() if isinstance(each, float)},
        "the list": {"step_ms": RunSummary.of(record).to_dict()["step_ms"]["median"]},
        "the claims": {name: value(metric(name), run) for name in ("step_ms", "peak_bytes", "bytes_moved")},
        "the phases": {f"phases_ms/{name}": value(metric(f"phase_ms:{name}"), run) for name in record.phases},
    }
    known |= {f"phases_ms/{name}": median for name, median in record.summary["phases_ms"].items()}
    for screen, shown in screens.items():
        assert shown == pytest.approx({name: known[name] for name in shown}), screen
        assert shown, screen
    digits = {figure.name: figure.digits for figure in figures(At.METRIC)}
    metrics = content.summary_metrics(record)
    assert {"step_ms", "samples_per_s", "phase_coverage", "bytes_moved", "peak_MB"} <= metrics.keys()
    for name, number in metrics.items():
        assert number == pytest.approx(known[name], rel=0.5 * 10 ** (1 - (digits.get(name, 4) or 17))), name


def test_every_figure_is_shown_somewhere_under_a_name_of_its_own() -> None:
    names = {figure.name for figure in FIGURES}
    assert len(names) == len(FIGURES) > 15
    assert all(figure.at for figure in FIGURES)
    assert all(figures(at) for at in At)


def test_the_largest_of_errors_hides_no_nan() -> None:
    assert (largest([1e-9, None, 1.0]), largest([None])) == (1.0, None)
    assert all(math.isnan(largest(values) or 0) for values in ([1e-9, math.nan], [math.nan, 1e-9]))

"""Claims: how Records judge them, and what remains open."""

from pathlib import Path

import pytest
from helpers.record_factory import whole

from dpexp.config.run_config import RunConfig
from dpexp.record.view import RecordView
from dpexp.study.experiment import Bars, Claim, Experiment, judge
from dpexp.study.metrics import metric, table_cell
from dpexp.study.records import Rounds
from dpexp.study.results import fill


def experiment(*claims: Claim, cells: tuple[str, ...] = ("single", "wide-2", "wide-3")) -> Experiment:
    runs = {cell: RunConfig("single") for cell in cells}
    return Experiment(Path("nowhere"), "Why?", runs, claims, "", (), Bars("", "step_ms", {}))


def rounds(devices: int, *step_ms: float) -> Rounds:
    """A run for each round, with about this step time."""
    return {
        number: RecordView(whole(devices, step_ms=ms, steps=40)) for number, ms in enumerate(step_ms, start=1)
    }


CELLS = {
    "single": rounds(1, 1.0, 1.01, 0.99),
    "wide-2": rounds(2, 2.0, 2.02, 1.98),
    "wide-3": rounds(3, 0.8, 1.0, 1.3),
}
LOST = {"lost": {number: RecordView(whole(2, memory={})) for number in (1, 2)}}


def outcome(claim: Claim) -> str:
    (verdict,) = judge(experiment(claim), CELLS)
    return verdict.outcome


def slower(cell: str, relation: str = ">", value: float = 1.0) -> Claim:
    return Claim("it takes longer", "step_ms", cell, relation, value, against="single")


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (slower("wide-2", ">", 1.8), "holds"),
        (slower("wide-2", "<", 1.8), "contradicted"),
        (slower("wide-3"), "not shown"),  # the interval has values on both sides
        (Claim("faster", "samples_per_s", "single", ">", 1.8, against="wide-2"), "holds"),
        (Claim("halves", "split", "wide-2", "==", "15 + 15; 5 + 5"), "holds"),
        (Claim("halves", "split", "wide-3", "==", "15 + 15; 5 + 5"), "contradicted"),
        (Claim("all equal one device", "verified", "*", "==", True), "holds"),
        (Claim("more copies", "replicated_bytes", "wide-3", ">=", 2.0, against="wide-2"), "holds"),
    ],
    ids=lambda each: f"{each.text}, {each.of} {each.relation}" if isinstance(each, Claim) else each,
)
def test_times_are_judged_by_intervals_and_facts_as_they_are(claim: Claim, verdict: str) -> None:
    assert outcome(claim) == verdict


def test_a_ratio_of_one_run_each_is_a_figure_and_no_verdict() -> None:
    once = {cell: {1: runs[1]} for cell, runs in CELLS.items()}
    for relation in ("<", ">"):
        (verdict,) = judge(experiment(slower("wide-2", relation)), once)
        assert (verdict.outcome, verdict.figures) == ("not shown", "2.00x (from one run each: no interval)")
    answer = fill("It takes {ratio step_ms wide-2 single} or {value step_ms wide-2}.", once)
    assert answer == "It takes 2.00x (from one run each) or 2 ms (from one run each)."


def test_placeholders_in_an_answer_become_figures_with_their_spread() -> None:
    answer = fill("It takes {ratio step_ms wide-2 single}; rows {value split wide-2}.", CELLS)
    assert answer == "It takes 2.00x (2.00x to 2.00x); rows 15 + 15; 5 + 5."


def test_the_verdict_on_several_cells_is_that_of_the_worst_and_names_it() -> None:
    (verdict,) = judge(experiment(slower("wide-*", ">", 1.9)), CELLS)
    assert verdict.outcome == "contradicted"
    assert verdict.figures.startswith("wide-3: ")


def test_runs_of_a_cell_that_disagree_in_a_fact_contradict_the_claim() -> None:
    mixed = {**CELLS, "wide-2": {**CELLS["wide-2"], 4: RecordView(whole(3))}}
    (verdict,) = judge(experiment(Claim("halves", "split", "wide-2", "==", "15 + 15; 5 + 5")), mixed)
    assert verdict.outcome == "contradicted"
    assert "disagree" in verdict.figures


def test_what_was_not_run_or_a_record_lacks_is_not_measured() -> None:
    (verdict,) = judge(experiment(slower("wide-2")), {"single": CELLS["single"]})
    assert (verdict.outcome, verdict.figures) == ("not measured", "no finished run of wide-2")
    for name in ("peak_bytes", "flops_per_s"):
        (verdict,) = judge(experiment(Claim("?", name, "lost", ">", 0), cells=("lost",)), LOST)
        assert (verdict.outcome, table_cell(metric(name), LOST["lost"])) == ("not measured", "-")

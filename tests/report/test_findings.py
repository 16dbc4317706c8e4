"""Every finding on a Record that must raise it and on a Record that must not."""

from helpers.command_lines import ROOT
from helpers.record_factory import PHASES, hybrid, whole

from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report.findings import FINDINGS, findings_of

BUSY = PHASES | {"scatter": 0.5, "replicate": 0.5, "parallel_apply": 20.0, "gather": 0.5, "backward": 40.0}
"""Phases of a step that keeps its devices busy, so that nothing is found."""
COPYING = PHASES | {"scatter": 0.3, "replicate": 1.0, "gather": 0.3}


def texts(record: Record) -> dict[str, str]:
    return findings_of(RecordView(record))


def test_a_busy_balanced_steady_run_has_no_findings() -> None:
    for record in (
        Record(),
        whole(2, phases=BUSY),
        whole(3, virtual=False, phases=BUSY),
        hybrid(sparse=True),
    ):
        assert not texts(record)


def test_every_finding_is_documented_in_the_order_of_reports() -> None:
    page = (ROOT / "docs" / "layouts.md").read_text()
    table = page[page.index("| finding | raised when | try |") :].split("\n\n")[0]
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [*FINDINGS]
    assert [*texts(whole(8, phases=COPYING, replica_share=0.1))] == [*FINDINGS][2:]


def test_nothing_but_the_layout_is_found_in_times_that_cannot_be_judged() -> None:
    record = whole(8, phases=COPYING, replica_share=0.1)
    record.steps["time_ms"] = [0.5, 4.0, 1.0, 9.0, 2.0] * 20
    found = texts(record)
    assert [*found] == ["cannot be judged", "idle devices"]
    assert found["cannot be judged"].startswith(
        "This run cannot be judged: the median of 75 steps lies between "
    )


def test_a_run_that_ends_within_a_window_of_accumulation_is_found() -> None:
    record = whole(2, phases=BUSY, steps=10)
    record.config["accumulate"] = 4
    found = texts(record)["gradients never applied"]
    assert found.startswith("The last 2 batches of 10 trained nothing")
    assert found.endswith("--steps 8 or 12.")
    record.config["accumulate"] = 5
    assert "gradients never applied" not in texts(record)


def test_batches_that_leave_devices_idle_are_found() -> None:
    found = texts(whole(8))["idle devices"]
    assert found.startswith("The last batch of an epoch (10 rows) runs on 5 of 8 devices: 3 idle")
    found = texts(whole(8, batches=(6,)))["idle devices"]
    assert found.startswith("Every batch (6 rows) runs on 6 of 8 devices: 2 idle")
    for record in (whole(2), whole(8, batches=(32, 32, 16)), hybrid()):
        assert "idle devices" not in texts(record)


# --- overheads -----------------------------------------------------------------------------------


def test_replicate_that_takes_much_of_a_step_is_found() -> None:
    found = texts(whole(8, phases=PHASES | {"replicate": 1.0}))["copying parameters"]
    assert "takes 34% of a step (1 ms): every forward copies 336 B of parameters and buffers to 7" in found
    assert "copying parameters" not in texts(whole(8, phases=BUSY))


def test_short_replicas_in_a_long_forward_are_overhead() -> None:
    found = texts(whole(2, phases=COPYING, replica_share=0.1))["mostly overhead"]
    assert "compute during 0.1 ms of the forward's 2.6 ms" in found
    assert "gather take 1.6 ms, and in the other 0.9 ms threads" in found
    assert "mostly overhead" not in texts(whole(2, phases=BUSY, replica_share=0.4)), "they compute for long"

"""The report of a run: what its sections say, and in which order."""

import json
import re

import pytest
from helpers.record_factory import PHASES, hybrid, whole

from dpexp import report
from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import units


def titles(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


def flat(text: str) -> str:
    """The text as one line."""
    return " ".join(text.split())


def test_a_report_has_its_sections_in_order() -> None:
    short = titles(report.summary(whole(2), width=100))
    assert short == [
        "Run whole-2 (0123456789ab)",
        "Shapes",
        "Device map",
        "Where a step goes",
        "Findings",
        "Look further",
    ]
    assert titles(report.summary(whole(2), width=100, full=True)) == [short[0], "Verified", *short[1:]]


def test_a_report_begins_with_a_verdict_and_six_lines_of_figures() -> None:
    record = whole(3, phases=PHASES | {"replicate": 5.0})
    lines = report.summary(record, width=120).splitlines()
    median, iqr = (units.ms(record.summary["step_ms"][key]) for key in ("median", "iqr"))
    assert lines[1] == f"  VIRTUAL devices, verified; {median} per step, IQR {iqr}, n 75; copying parameters"
    starts = [
        "strategy whole on 3 virtual devices: cpu:0, cpu:1, cpu:2; results on cpu:0",
        "model linear, data random, batches of 30, float32, seed 0",
        r"median of 75 steps of 30 rows; left out: 25 of 10 rows",
        r"[\d,]+ samples/s on this CPU; [\d,]+ samples/s by wall clock; loss 1 \(initial\), 0.01 \(final\)",
        r"errors to a single device: outputs 0.0e\+00, gradients 5.3e-16; limit 1e-12",
        r"training steps checked in float32: outputs 0.0e\+00, gradients 9.4e-07; limit 1e-05",
    ]
    assert all(re.fullmatch(f"  {start}", line) for start, line in zip(starts, lines[2:8], strict=True))
    assert lines[8] == ""


def test_a_failed_verification_is_shown_with_its_cause_and_figures_that_are_not_finite() -> None:
    worst = {"kind": "outputs", "error": float("inf"), "tensor": "", "step": 1}
    cause = "step 1 (30 rows): outputs differ by inf"
    record = whole(2)
    record.verification |= {"passed": False, "steps": 1, "worst": worst, "cause": cause}
    record.verification |= {"output_error": float("inf"), "gradient_error": float("nan")}
    for shown in (record, Record.from_dict(json.loads(record.to_json()))):
        text = report.summary(shown, width=100)
        assert "NOT THE SAME" in text.splitlines()[1]
        assert (
            "with a single device, 1 step in float64; relative errors: outputs inf, gradients nan;"
            in flat(text)
        )
        assert "the largest error is inf: outputs in step 1" in text
        assert cause in text


def test_a_short_report_cuts_shapes_and_device_map_and_a_full_one_has_all() -> None:
    record = whole(3, batches=(30, 29, 28, 27, 26, 25, 24))
    short, full = (report.summary(record, width=100, full=full) for full in (False, True))
    assert "  … and 4 more lines\n" in short
    assert "  … and 8 more rows\n" in short
    assert "more rows" not in full
    assert all(f"batch {number}: " in full for number in range(7))


def test_batches_are_ranges_and_those_that_were_not_observed_are_said_to_be_so() -> None:
    record = whole(2, batches=(30,) * 50)
    record.shapes = [row for row in record.shapes if row["batch"] < 16 or row["batch"] == 49]
    text = report.summary(record, width=100)
    assert "  batches 0-15, 49: 30 rows -> 15 + 15\n  batches 16-48: not observed\n" in text
    assert "not observed" not in report.summary(whole(2), full=True)


def test_an_untracked_run_has_no_page_in_mlflow() -> None:
    tracked, untracked = whole(2), whole(2)
    untracked.config["track"] = False
    assert "look in MLflow" in report.summary(tracked, full=True)
    assert not re.search(r"MLflow|timeline\.html", report.summary(untracked, full=True))


def test_a_watched_loop_begins_with_its_verdict_and_gets_no_advice_for_runs() -> None:
    watched = whole(2, execution="passthrough", name="watch-Net")
    watched.config = {"strategy": "watch", "model": "Net", "layout": "whole", "track": True}
    watched.steps["time_ms"] = [0.5, 4.0, 1.0, 9.0, 2.0] * 20
    watched.verification |= {"steps": 4, "tolerance": 1e-5}
    text = report.summary(watched, width=120)
    title, verdict, *_ = text.splitlines()
    assert verdict.endswith(", verified to 1e-05; 4 steps compared"), title
    assert "model Net in whole" in text
    assert not re.search("cannot be judged: |--steps|--virtual|Findings", text)


def test_a_device_map_says_what_moves_and_which_part_of_a_module_a_rank_has() -> None:
    record = whole(4)
    text = report.summary(whole(2), width=100)
    assert "forward moves 468 B: 300 B by scatter, 120 B by gather, 48 B by replicate" in text
    assert "backward moves 168 B: 120 B by gather, 48 B by replicate" in text
    record.devices["ranks"] = [{"rank": rank, "host": "a", "device": f"cpu:{rank}"} for rank in range(4)]
    (weight, bias), record.device_map = record.device_map[:2], []
    for rank in range(4):
        shard = {"rank": rank, "device": f"cpu:{rank}", "replicas": [], "module": "block1"}
        shard["placement"] = "S(0)"
        record.device_map += [
            weight | shard | {"shape": [20, 12], "local_shape": [5, 12], "bytes": 240},
            bias | shard | {"shape": [20], "local_shape": [5], "bytes": 20},
        ]
    part = "25% of block1, 260 B of 1.04 kB  260 B of 1.04 kB each"
    assert f"cpu:0 … cpu:3  {part}" in report.summary(record, width=100)
    for row in record.device_map:
        row |= {"device": "cpu"}
    assert f"cpu of rank 0 … cpu of rank 3  {part}" in report.summary(record, width=100)


def test_a_full_report_has_memory_by_category_and_work() -> None:
    """Devices that are alike share a row; a figure of a device that is not known is a dash."""
    use = {"parameters": 48, "buffers": 0, "gradients": 48, "optimizer": 96}
    rows = [{"device": "cpu", "peak": 5000}, *({"device": f"cpu:{index}", **use} for index in range(3))]
    work = {"rows": 30, "flops": {"forward": 600, "backward": 900}}
    record = whole(3, step_ms=2.0, memory_use=rows, work=work)
    per_second = 1500 / record.summary["step_ms"]["median"] * 1000
    section = report.summary(record, width=120, full=True).partition("Memory and work of a step\n")[2]
    computed, *lines = [re.split(r"  +", line.strip()) for line in section.splitlines()[:4]]
    said = "a step of 30 rows computes at least 600 FLOP in forward, 900 FLOP in backward; "
    assert computed == [f"{said}{units.flop(per_second)}/s"]
    assert [line[0] for line in lines] == ["device", "cpu", "cpu:0, cpu:1, cpu:2"]
    assert lines[0][4:] == ["optimizer state", "at most at once"]
    assert lines[1][1:] == ["-"] * 4 + ["5 kB"]
    assert lines[2][1:] == ["48 B", "0 B", "48 B", "96 B", "-"]
    assert "Memory and work" not in report.summary(record, width=120)
    record.work = {"rows": 10, "flops": work["flops"]}  # the observed step is not one of the usual size
    record.summary = {}
    assert "flops_per_s" not in summarize(record)


def test_shares_of_phases_and_the_rest_add_up() -> None:
    record = whole(2)
    for row in record.timeline:
        if row["phase"] == "step":
            row["end_us"] += 500.0
    bars = re.findall(r"^  (\S+) +[█·]+ +([\d.]+)%", report.summary(record, width=120), re.MULTILINE)
    assert [name for name, _ in bars] == [*PHASES, "(rest)"]
    assert sum(float(share) for _, share in bars) == pytest.approx(100, abs=1)
    assert RecordView(record).phase_coverage == pytest.approx(0.8)
    assert "the phases cover 80% of it" in report.summary(record, width=120)


def test_what_a_reader_must_know_stands_at_the_head() -> None:
    record = whole(2)
    record.devices["requested"] = ["auto"]
    assert "no accelerator: the run emulates 2 (--virtual 2); --devices cpu" in flat(report.summary(record))
    record.execution, record.damage = "passthrough", ["line 3 is torn"]
    text = report.summary(record)
    assert "emulate devices: --virtual 2" in text
    assert "DAMAGED: line 3 is torn" in text
    assert report.summary(whole(2, virtual=False)).splitlines()[1].startswith("  REAL")


def test_runs_that_failed_or_have_only_begun_have_a_report() -> None:
    record = whole(2, status="failed", error={"type": "ValueError", "message": "no", "traceback": ""})
    assert report.summary(record, width=100).splitlines()[1] == "  FAILED: ValueError: no"
    assert "RUNNING" in report.summary(Record(run_id="ab"))
    assert "RUNNING" in report.note(Record(run_id="ab"))
    early = Record(name="early", strategy="custom", status="failed", execution="virtual")
    assert "strategy custom\n" in report.summary(early)


def test_run_again_has_the_options_that_differ_from_the_defaults() -> None:
    assert "python scripts/run.py whole --virtual 2\n" in report.summary(whole(2), width=100)
    text = report.summary(hybrid(sparse=True), width=100)
    assert "python scripts/run.py hybrid --virtual 1 --sparse\n" in text


def test_a_dry_run_of_64_replicas_and_12_layers_fits_on_a_screen() -> None:
    record = whole(64, modules=12, batches=(512, 512, 100))
    planned = Record(status="planned", verification={"checked": False, "note": "a note"})
    for key in ("name", "strategy", "execution", "config", "data", "devices", "device_map", "shapes"):
        setattr(planned, key, getattr(record, key))
    text = report.summary(planned, width=80)
    assert len(text.splitlines()) <= 40
    assert text.startswith(
        "Would run whole-64 (virtual)\n  strategy whole on 64 virtual devices: cpu:0 … cpu:63;"
    )
    for line in ("a note", "batches 0-1: 512 rows -> 64 × 8", "backward moves "):
        assert f"\n  {line}" in text
    assert "layers.0-11.linear" in text
    assert text.endswith("Dry run: nothing was run or written.")
    assert not re.search("verified|RUNNING|machine|run again", text)

"""The summary and the note: their content, its order, and how it fits terminals and MLflow."""

import importlib
import inspect
import itertools
import json
import os
import pkgutil
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_terminal import in_terminal
from record_factory import PHASES, hybrid, whole

from dpexp import report
from dpexp.config.alike import merged
from dpexp.record.figures import summarize
from dpexp.record.record import Record
from dpexp.report import plan, terminal, units
from dpexp.report.findings import findings_of

PARTS = st.sampled_from(["layers", "a", "0", "1", "2", "10"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(".".join)


def titles(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


def test_summary_has_its_sections_in_order() -> None:
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


def test_a_summary_begins_with_a_verdict_and_five_figures_a_line_each() -> None:
    record = whole(3)
    lines = report.summary(record, width=110).splitlines()
    assert lines[1].startswith("  VIRTUAL devices, verified; ")
    assert f" a step, IQR {units.ms(record.summary['step_ms']['iqr'])}, n 75" in lines[1]
    starts = [
        "strategy whole on 3",
        "model linear",
        "median of 75 steps of 30 rows; left out: 25 of 10 rows",
        r"[\d,]+ samples/s on this CPU; [\d,]+ samples/s by wall clock; loss ",
        "errors to",
    ]
    assert all(re.match(f"  {start}", line) for start, line in zip(starts, lines[2:], strict=False))
    assert lines[7] == ""
    note = [line.removeprefix("- ") for line in report.note(record).splitlines()]
    assert [re.sub(r"\\(.)", r"\1", line) for line in note[2:8]] == [line.strip() for line in lines[1:7]]


def test_the_verdict_says_how_far_a_run_is_verified_where_the_limit_is_wide() -> None:
    record = whole(2)
    assert "verified to" not in report.summary(record).splitlines()[1]
    record.verification["tolerance"] = 1e-4
    assert ", verified to 1e-04;" in report.summary(record).splitlines()[1]


def test_the_verdict_names_the_finding_that_matters_most() -> None:
    record = whole(2, phases=PHASES | {"replicate": 5.0})
    assert findings_of(record)[0].name in report.summary(record, width=120).splitlines()[1]


@pytest.mark.parametrize("width", [80, 100])
def test_a_section_of_a_short_summary_has_ten_lines_and_full_has_the_rest(width: int) -> None:
    record = whole(3, batches=(30, 29, 28, 27, 26, 25, 24))
    short = re.split(r"\n(?=\S)", report.summary(record, width=width))
    full = report.summary(record, width=width, full=True)
    lengths = {part.splitlines()[0]: len(part.strip().splitlines()) - 1 for part in short}
    assert max(lengths[title] for title in ("Shapes", "Device map", "Where a step goes")) == 10
    assert "more lines: --full" in "".join(short)
    assert "--full\n" not in full.replace("show 0123456789ab --full\n", "")
    assert all(f"batch {number}: " in full for number in range(7))


def test_layers_and_replicas_that_are_alike_share_a_row() -> None:
    text = report.summary(whole(64, modules=12, batches=(512, 512)), width=80, full=True)
    assert len(re.findall(r"layers\.0-11\.linear +64 × \(8, 5\) +64 × \(8, 2\) +64 replicas", text)) == 1
    assert "holds" in text
    assert "a copy of layers.0-11.linear" in text
    assert len(text.splitlines()) < 60


@given(st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=30, unique_by=lambda row: row[0]))
def test_merged_names_stand_for_exactly_the_given_ones(rows: list[tuple[str, int]]) -> None:
    """Each row is found again when the ranges of the merged names are written out."""

    def written_out(part: str) -> list[str]:
        if not re.fullmatch(r"[\d,-]+", part):
            return [part]
        ends = [piece.split("-") for piece in part.split(",")]
        return [str(index) for end in ends for index in range(int(end[0]), int(end[-1]) + 1)]

    found = [
        (".".join(parts), content)
        for name, content in merged(rows)
        for parts in itertools.product(*map(written_out, name.split(".")))
    ]
    assert sorted(found) == sorted(rows)
    assert len(merged(rows)) <= len(rows)


def test_a_dry_run_of_64_replicas_and_12_layers_fits_on_a_screen() -> None:
    record = whole(64, modules=12, batches=(512, 100))
    planned = {
        name: getattr(record, name) for name in ("name", "execution", "config", "devices", "device_map")
    }
    split = {"module": "", "rows": 512, "batches": 3, "pieces": [8] * 64, "devices": record.devices["used"]}
    planned |= {"shapes": record.shapes, "splits": [split, split | {"rows": 100, "batches": 1}], "note": ""}
    text = terminal.terminal_text(plan.plan_sections(planned), width=80)
    assert len(text.splitlines()) <= 40
    assert "batches 0-2: 512 rows -> 64 × 8" in text
    assert "layers.0-11.linear" in text


def test_a_full_summary_has_memory_by_category_and_work() -> None:
    """Devices that are alike share a row; a figure of a device that is not known is a dash."""
    use = {"parameters": 48, "buffers": 0, "gradients": 48, "optimizer": 96, "activations": 1200}
    rows = [{"device": "cpu", "peak": 5000}, *({"device": f"cpu:{index}", **use} for index in range(3))]
    work = {"rows": 30, "flops": {"forward": 600, "backward": 900}, "not_counted": ["embedding"]}
    record = whole(3, step_ms=2.0, memory_use=rows, work=work)
    assert record.summary["memory_bytes"] == use | {"peak": 5000}
    per_second = 1500 / record.summary["step_ms"]["median"] * 1000
    assert record.summary["flops_per_s"] == pytest.approx(per_second)
    section = report.summary(record, width=120, full=True).partition("Memory and work of a step\n")[2]
    lines = [re.split(r"  +", line.strip()) for line in section.splitlines()[:5]]
    computed = f"computes at least 600 FLOP in forward, 900 FLOP in backward; {units.flop(per_second)}/s"
    assert lines[:2] == [[f"a step of 30 rows {computed}"], ["not counted: embedding"]]
    assert [line[0] for line in lines[2:]] == ["device", "cpu", "cpu:0, cpu:1, cpu:2"]
    assert lines[2][4:] == ["optimizer state", "activations", "at most at once"]
    assert lines[3][1:] == ["-"] * 5 + ["5 kB"]
    assert lines[4][1:] == ["48 B", "0 B", "48 B", "96 B", "1.2 kB", "-"]
    assert "Memory and work" not in report.summary(record, width=120)
    assert "FLOP" not in report.summary(record, width=120)  # the time of a small step is not of arithmetic
    record.work = {"rows": 10, "flops": work["flops"]}  # the observed step is not one of the usual size
    record.summary = {}
    assert "flops_per_s" not in summarize(record)


def test_a_full_summary_has_the_share_of_the_peak_tokens_and_energy() -> None:
    rates = {"median": 9e9, "iqr": 1e8, "min": 8e9, "max": 1e10, "n": 20}
    peak = {
        "device": "A CPU",
        "dtype": "float32",
        "threads": 2,
        "size": 512,
        "devices": 2,
        "flops_per_s": rates,
    }
    energy = {"joules": {"package-0": 30.0, "cuda:0": 20.0}, "steps": 100}
    work = {"rows": 30, "flops": {"forward": 10**7}, "tokens": 90.0, "peak": peak, "energy": energy}
    record = whole(2, step_ms=2.0, work=work)
    step_s, summary = record.summary["step_ms"]["median"] / 1000, record.summary
    assert summary["peak_share"] == pytest.approx(10**7 / step_s / 2e10)
    assert f"; {units.flop(summary['flops_per_s'])}/s\n" in report.summary(record, width=160)
    assert (summary["tokens_per_s"], summary["joules_per_step"]) == (pytest.approx(90 / step_s), 0.5)
    text = " ".join(report.summary(record, width=160, full=True).split())
    assert f"at least {units.percent(summary['peak_share'])} of the peak of 2 × A CPU: 10 GFLOP/s" in text
    assert "20 products of 512 x 512 matrices (median 9 GFLOP/s, IQR 100 MFLOP/s, float32, 2 threads)" in text
    assert f"{units.number(90 / step_s)} tokens/s; 0.5 J a step of package-0, cuda:0" in text
    del work["peak"]  # an earlier dpexp, or a machine whose peak is not known
    record.summary = {}
    assert "peak_share" not in summarize(record)


def test_note_has_the_sections_of_the_summary() -> None:
    record = whole(2)
    headings = [line[4:] for line in report.note(record).splitlines() if line.startswith("### ")]
    assert headings == titles(report.summary(record, width=100))


def test_a_note_is_short_enough_for_an_mlflow_tag() -> None:
    for record in (whole(1000, virtual=False, batches=(2000, 20)), whole(2, modules=100), hybrid()):
        assert len(report.note(record)) < 8000


def test_the_kind_of_execution_comes_first() -> None:
    assert report.summary(whole(2), width=100).splitlines()[1].startswith("  VIRTUAL")
    assert report.summary(whole(2, virtual=False), width=100).splitlines()[1].startswith("  REAL")


def test_a_failed_verification_is_shown_with_its_cause_and_figures_that_are_not_finite() -> None:
    worst = {"kind": "outputs", "error": float("inf"), "tensor": "", "step": 1}
    record = whole(2)
    record.verification |= {
        "passed": False,
        "output_error": float("inf"),
        "gradient_error": float("nan"),
        "steps": 1,
        "worst": worst,
        "cause": "step 1 (30 rows): outputs differ by inf",
    }
    for shown in (record, Record.from_dict(json.loads(record.to_json()))):
        text = report.summary(shown, width=100)
        assert "NOT THE SAME" in text.splitlines()[1]
        assert "outputs differ by inf and gradients differ by nan from a single device in 1 step " in text
        assert "the largest error is inf: outputs in step 1" in text
        assert "step 1 (30 rows): outputs differ by inf" in text


@pytest.mark.parametrize(
    ("devices", "full", "last"),
    [(2, "15 + 15", "5 + 5"), (3, "10 + 10 + 10", "4 + 4 + 2"), (8, "7 × 4 + 2", "5 × 2")],
)
def test_batches_show_how_they_were_split(devices: int, full: str, last: str) -> None:
    text = report.summary(whole(devices), width=100)
    assert f"batches 0-2: 30 rows -> {full}\n" in text
    assert f"batch 3: 10 rows -> {last}\n" in text


def test_passthrough_names_the_option_that_shows_replicas() -> None:
    record = whole(1)
    record.execution = "passthrough"
    assert "--virtual" in report.summary(record)


def test_devices_that_nobody_asked_for_are_explained_in_one_line() -> None:
    record = whole(2)
    assert "no accelerator" not in report.summary(record)
    record.devices["requested"] = ["auto"]
    explained = [line for line in report.summary(record, width=200).splitlines() if "no accelerator" in line]
    assert len(explained) == 1
    assert all(words in explained[0] for words in ("emulates 2 (--virtual 2)", "--devices cpu"))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for record in (whole(32), hybrid(), whole(2, modules=100)):
        assert max(map(len, report.summary(record, width=width).splitlines())) <= width


def test_colour_only_on_request_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in report.summary(whole(2))
    assert "\x1b[" in report.summary(whole(2), color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in report.summary(whole(2), color=True)


def test_a_terminal_without_unicode_gets_plain_bars() -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from record_factory import whole; from dpexp import report; print(report.summary(whole(8)))"
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "####" in shown.stdout
    assert "7 x 4 + 2" in shown.stdout


def test_a_terminal_gets_colour_and_text_of_its_width() -> None:
    """In a real pseudo-terminal of 60 columns."""
    code = "from record_factory import whole; from dpexp import report; print(report.summary(whole(8)))"
    shown = in_terminal(code, columns=60).replace("\r", "")
    assert "\x1b[" in shown
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in shown.splitlines()) <= 60


def test_an_empty_record_has_a_summary_and_a_note() -> None:
    assert "RUNNING" in report.summary(Record(run_id="ab"))
    assert "RUNNING" in report.note(Record(run_id="ab"))


def test_a_failed_run_starts_with_its_error() -> None:
    record = whole(2, status="failed", error={"type": "ValueError", "message": "no", "traceback": ""})
    assert report.summary(record, width=100).splitlines()[1] == "  FAILED: ValueError: no"


def test_a_run_that_failed_before_its_devices_were_recorded_names_none() -> None:
    record = Record(name="early", strategy="custom", status="failed", execution="virtual")
    text = report.summary(record)
    assert "strategy custom; devices not recorded" in text
    assert "on the host" not in text


def test_markup_in_names_is_text_in_the_note() -> None:
    record = whole(2, name="<img src=x onerror=alert(1)> [a](javascript:b) `c` | d")
    heading = report.note(record).splitlines()[0]
    assert "<img" not in heading
    assert "\\[a\\]" in heading


def test_public_functions_stay_functions_after_every_submodule_was_imported() -> None:
    """A submodule of the same name would replace the function as soon as it is imported."""
    for module in pkgutil.iter_modules(report.__path__):
        importlib.import_module(f"dpexp.report.{module.name}")
    assert all(inspect.isfunction(getattr(report, name)) for name in report.__all__)


def test_a_device_map_says_which_part_of_a_module_a_rank_has() -> None:
    record = whole(4)
    record.devices["ranks"] = [{"rank": rank, "host": "a", "device": f"cpu:{rank}"} for rank in range(4)]
    (weight, bias), record.device_map = record.device_map[:2], []
    for rank in range(4):
        shard = {
            "rank": rank,
            "device": f"cpu:{rank}",
            "replicas": [],
            "module": "block1",
            "placement": "S(0)",
        }
        record.device_map += [
            weight | shard | {"shape": [20, 12], "local_shape": [5, 12], "bytes": 240},
            bias | shard | {"shape": [20], "local_shape": [5], "bytes": 20},
        ]
    text = report.summary(record, width=100)
    assert "cpu:0 … cpu:3  a quarter of block1, 260 of 1,040 B  260 of 1,040 B each" in text
    for row in record.device_map:
        row |= {"device": "cpu"}
    assert "cpu of rank 0 … cpu of rank 3  a quarter of block1" in report.summary(record, width=100)


def test_a_summary_says_what_a_step_moves() -> None:
    text = report.summary(whole(2), width=100)
    assert "forward moves 468 B: 300 B by scatter, 120 B by gather, 48 B by replicate" in text
    assert "backward moves 168 B: 120 B by gather, 48 B by replicate" in text


def test_run_again_has_the_options_that_differ_from_the_defaults() -> None:
    assert "python scripts/run.py whole --virtual 2\n" in report.summary(whole(2), width=100)
    assert "python scripts/run.py hybrid --virtual 1 --sparse\n" in report.summary(
        hybrid(sparse=True), width=100
    )


def test_the_first_four_lines_have_one_step_time() -> None:
    for width in (80, 120):
        head = report.summary(whole(2), width=width).splitlines()[:4]
        assert len(re.findall(r"\d (?:µs|ms|s) a step|\d (?:µs|ms|s) median", "\n".join(head))) == 1


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ((30, 30, 30, 10), "median of 75 steps of 30 rows; left out: 25 of 10 rows (last of each epoch)"),
        ((32, 32), "median of 100 steps of 32 rows"),
        (
            (30, 30, 20, 1),
            "median of 50 steps of 30 rows; left out: 25 of 20 rows, 25 of 1 row (another size)",
        ),
    ],
)
def test_the_summary_says_which_steps_are_not_in_the_median_and_why(
    batches: tuple[int, ...], said: str
) -> None:
    assert f"  {said}\n" in report.summary(whole(1, batches=batches), width=120)


def test_one_of_anything_is_not_many() -> None:
    record = whole(1, steps=1, batches=(1,))
    record.environment["threads"] = 1
    record.verification["steps"] = 1
    text = report.summary(record, width=200, full=True)
    assert "1 thread, " in text
    assert "median of 1 step of 1 row\n" in text
    assert not re.search(r"(?<![\d.,-])1 (?:steps|rows|threads|batches|replicas|devices|modules)\b", text)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("full", [False, True])
def test_names_are_not_broken_inside(width: int, full: bool) -> None:
    """Every word of a wide summary that is not longer than the line stands in a narrow one as a whole."""
    records = [whole(32, modules=3), hybrid(sparse=True)]
    for name in ("backward all-gather", "allreduce_of_the_first_bucket"):
        records.append(whole(2, phases=PHASES | {name: 1.0}))
    long = whole(2)
    for row in long.device_map:
        row["module"] = "encoder.layers.11.self_attention.out_projection"
    for record in [*records, long]:
        wide, narrow = (report.summary(record, width=each, full=True) for each in (2000, width))
        words = set(re.findall(r"[\w.:/-]*[a-z_]{4}[\w.:/-]*", wide.partition("Look further")[0]))
        lost = {word for word in words if word not in narrow and len(word) < width - 24}
        assert not lost
        assert max(map(len, report.summary(record, width=width, full=full).splitlines())) <= width

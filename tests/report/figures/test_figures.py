"""Figures and pages of a run: their content, that they stay legible, and that they load nothing else."""

import itertools
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_lines import HELPERS
from drawn_pictures import bars, has_round_ticks, illegible_texts
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from record_factory import PHASES, hybrid, time_phases, timeline_row, whole

from dpexp import report
from dpexp.record.figures.phase_times import REST
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import ticks, units
from dpexp.report.analysis import timeline
from dpexp.report.figures import palette, style
from dpexp.report.figures.fonts import DPI
from dpexp.report.figures.layout import layout_figure
from dpexp.report.figures.phases import phases_figure
from dpexp.report.figures.picture import Arrow, Card, Picture
from dpexp.report.figures.timeline import timeline_figure
from dpexp.report.render import page, terminal
from dpexp.study.experiment.figure import SERIES

NAMES = ["layout.png", "phases.png", "timeline.html", "timeline.png", "trace.json"]
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'
DEEP = [
    "encoder.layers.11.self_attention.linear_projection",
    "encoder.layers.10.self_attention.linear_projection",
    "encoder.layers.11.self_attention.output_projection_of_all_heads",
]


def deep() -> Record:
    """A run with deep modules, whose names share both ends, on devices of hosts with long names."""
    record = whole(2, phases={name: 1e5 * ms for name, ms in PHASES.items()})
    row = record.device_map[0]
    record.device_map = [{**row, "module": name} for name in DEEP]
    for row in record.timeline:
        row["device"] = f"node-17.rack-3.cluster.example.org/{row['device']}"
    return record


RECORDS = {
    "1 device": lambda: whole(1),
    "2 devices": lambda: whole(2),
    "8 devices": lambda: whole(8),
    "32 devices": lambda: whole(32, batches=(60, 60, 20)),
    "1000 devices": lambda: whole(1000, virtual=False, batches=(2000,)),
    "100 modules": lambda: whole(2, modules=100),
    "hybrid": hybrid,
    "deep modules": deep,
    "0.2 µs": lambda: whole(2, phases={name: 1e-4 * ms for name, ms in PHASES.items()}),
    "0 ms": lambda: whole(2, phases=PHASES | {"scatter": 0.0, "gather": 0.0001, "loss": 23.4}),
}


@pytest.fixture(params=RECORDS, scope="module")
def record(request: pytest.FixtureRequest) -> Record:
    made = RECORDS[request.param]()
    assert isinstance(made, Record)
    return made


@pytest.fixture(scope="module")
def pictures(record: Record, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that ``write_files`` wrote, by name."""
    return {path.name: path for path in report.write_files(record, tmp_path_factory.mktemp("run") / "new")}


def test_every_figure_of_a_finished_run_is_written(pictures: dict[str, Path]) -> None:
    assert sorted(pictures) == NAMES
    assert all(path.stat().st_size > 0 for path in pictures.values())


def test_a_run_that_recorded_nothing_has_no_figures(tmp_path: Path) -> None:
    assert report.write_files(Record(), tmp_path) == []


# --- legible -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures(record: Record) -> list[Picture]:
    view = RecordView(record)
    return [timeline_figure(view, timeline.steps(view)), phases_figure(view), layout_figure(view)]


def test_no_texts_overlap_and_none_is_cut_off(figures: list[Picture]) -> None:
    assert [illegible_texts(figure) for figure in figures] == [[], [], []]


def test_axes_have_three_round_ticks_or_more(figures: list[Picture]) -> None:
    timeline, phases, _ = figures
    assert has_round_ticks(timeline)
    assert has_round_ticks(phases)


def test_pictures_have_the_colours_of_their_bars_and_dark_texts(
    pictures: dict[str, Path], figures: list[Picture]
) -> None:
    for name, figure in zip(("timeline.png", "phases.png", "layout.png"), figures, strict=True):
        with Image.open(pictures[name]) as image:
            assert image.size == (figure.width, figure.height)
            colors = {"#{:02X}{:02X}{:02X}".format(*color) for _, color in image.getcolors(1 << 20)}
        wanted = {bar.color for bar in bars(figure) if bar.ends[2] - bar.ends[0] > 4}
        assert wanted | {style.PAPER, style.INK} <= colors
        assert bool(wanted) == (name != "layout.png")


def test_modules_keep_their_end_and_their_layer() -> None:
    texts = {text.text for text in layout_figure(RecordView(deep())).texts}
    for name in DEEP:
        shown = next(text for text in texts if text.startswith(units.short_name(name, 40)))
        assert shown.endswith("40 B")
        assert len(shown) < 48


def in_ring(count: int, batches: int = 4) -> Record:
    """A run of ranks that each hold a part of every module, and send to the next one."""
    record = whole(count)
    devices = record.devices["used"]
    record.devices["ranks"] = [{"rank": rank, "device": device} for rank, device in enumerate(devices)]
    record.device_map = [
        {**row, "device": device, "replicas": []} for row in record.device_map for device in devices
    ]
    sent = {"what": "all-gather", "phase": "forward", "backward": False, "bytes": 880}
    record.summary["collectives"] = [
        {"rank": rank, "batch": batch, **sent} for rank in range(count) for batch in range(batches)
    ]
    return record


@pytest.mark.parametrize(
    "record", [in_ring(2), in_ring(5), whole(4), hybrid()], ids=["2", "5", "whole", "hybrid"]
)
def test_no_arrow_of_a_layout_crosses_a_box(record: Record) -> None:
    figure = layout_figure(RecordView(record))
    assert illegible_texts(figure) == []
    boxes = [shape.ends for shape in figure.shapes if isinstance(shape, Card)]
    arrows = [shape.corners for shape in figure.shapes if isinstance(shape, Arrow)]
    assert len(arrows) >= 2
    assert len(boxes) >= 2
    for arrow, box in itertools.product(arrows, boxes):
        assert not any(crosses(*line, box) for line in itertools.pairwise(arrow))


def crosses(start: tuple[float, float], end: tuple[float, float], box: tuple[float, ...]) -> bool:
    """Whether a line has a point in a box."""
    between = np.linspace(start, end, 1000)
    left, upper, right, lower = box
    inside = (between > (left, upper)) & (between < (right, lower))
    return bool(inside.all(axis=1).any())


def test_a_phase_of_0_percent_is_not_drawn() -> None:
    record = whole(2, phases=PHASES | {"scatter": 0.0, "gather": 0.0001})
    steps = timeline.steps(record)
    for figure, count in (
        (phases_figure(RecordView(record)), 5),
        (timeline_figure(RecordView(record), steps), 7),
    ):
        assert len(bars(figure)) == count


@pytest.mark.parametrize(("levels", "more"), [(40, None), (41, "1 more bar"), (60, "20 more bars")])
def test_bars_and_lanes_that_are_left_out_are_counted(levels: int, more: str | None) -> None:
    record = whole(1)
    record.timeline = [
        {
            "step": 0,
            "phase": f"nested{n}",
            "replica": None,
            "device": device,
            "start_us": 0,
            "end_us": 9000 - n,
        }
        for device, count in (("cpu:0", levels), ("cpu:1", 3))
        for n in range(count)
    ]
    figure = timeline_figure(RecordView(record), timeline.steps(record))
    assert len(bars(figure)) == 40
    below = " and ".join(["and 1 more lane", more] if more else ["and 1 more lane"])
    assert f"{below}, in timeline.html" in {text.text for text in figure.texts}


def test_no_figure_is_larger_than_a_page(figures: list[Picture]) -> None:
    for figure in figures:
        assert max(figure.width, figure.height) <= 16 * DPI


# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
TOGETHER = {
    "whole": [
        "transfer",
        "scatter",
        "replicate",
        "parallel_apply",
        "gather",
        "loss",
        "backward",
        "optimizer",
    ],
    "block": ["forward", "scatter", "replicate", "parallel_apply", "gather", "loss", "backward", "optimizer"],
    "hybrid": ["embedding", "transfer", "dense", "parallel_apply", "gather", "loss", "backward", "optimizer"],
    "ddp": [
        "transfer",
        "forward",
        "loss",
        "backward",
        "backward_compute",
        "allreduce",
        "overlap",
        "optimizer",
    ],
    "fsdp": [
        "transfer",
        "all-gather",
        "forward",
        "loss",
        "backward",
        "backward all-gather",
        "reduce-scatter",
        "optimizer",
    ],
    "hybrid on ranks": [
        "embedding",
        "all_to_all_ids",
        "all_to_all_vectors",
        "all_to_all_gradients",
        "transfer",
        "dense",
        "loss",
        "backward",
        "allreduce_tables",
        "optimizer",
    ],
}
"""The phases that a step of a strategy can have, of which any two can stand side by side."""


def cielab(color: str, vision: np.ndarray) -> np.ndarray:
    """CIELAB of a colour under a kind of vision."""
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.clip(vision @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    relative = to_xyz @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(relative > 216 / 24389, np.cbrt(relative), (24389 / 27 * relative + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])  # fmt: skip


@pytest.mark.parametrize("strategy", TOGETHER)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_phases_of_a_strategy_are_distinct_with_every_kind_of_colour_blindness(
    strategy: str, blindness: str
) -> None:
    colors = palette.colors(TOGETHER[strategy])
    for first, second in itertools.combinations(TOGETHER[strategy], 2):
        assert difference(colors[first], colors[second], BLINDNESS[blindness]) > 15, (first, second)


def difference(one: str, other: str, vision: np.ndarray) -> float:
    return float(np.linalg.norm(cielab(one, vision) - cielab(other, vision)))


def test_every_phase_with_a_colour_of_its_own_is_judged() -> None:
    assert set(itertools.chain.from_iterable(TOGETHER.values())) | {REST} == set(palette.PHASES)


@st.composite
def steps_of_ranks(draw: st.DrawFn) -> timeline.TimelineStep:
    """A step of two ranks, with phases of a strategy and of a user in any order, which overlap or not."""
    known = draw(st.sampled_from(list(TOGETHER.values())))
    own = draw(st.lists(st.text("abcdefg /_-", min_size=1, max_size=9), max_size=4))
    buckets = [f"allreduce_bucket{number}" for number in range(draw(st.integers(0, 12)))]
    buckets = buckets if "allreduce" in known else []
    record = whole(2)
    record.devices["ranks"] = [{"rank": rank, "host": "laptop", "device": f"cpu:{rank}"} for rank in (0, 1)]
    record.timeline = [timeline_row(0, "step", None, "cpu:0", 0, 1000)]
    for rank, phase in itertools.product((0, 1), draw(st.permutations([*known, *own]))):
        start, length = draw(st.integers(0, 900)), draw(st.integers(1, 100))
        record.timeline.append(timeline_row(0, phase, rank, f"cpu:{rank}", start, start + length))
    for number, phase in enumerate(buckets):
        record.timeline.append(timeline_row(0, phase, 0, "cpu:0", 40 * number, 40 * number + 60))
    return timeline.steps(record)[0]


def side_by_side(lane: timeline.Lane) -> set[tuple[str, str]]:
    """The pairs of different phases that touch or follow each other in a lane."""
    beside = [pair for level in lane.levels for pair in itertools.pairwise(level)]
    for upper, lower in itertools.pairwise(lane.levels):
        beside += [
            (one, other)
            for one, other in itertools.product(upper, lower)
            if max(one.start, other.start) <= min(one.end, other.end)
        ]
    return {(one.phase, other.phase) for one, other in beside if one.phase != other.phase}


@given(steps_of_ranks())
def test_phases_side_by_side_in_a_lane_have_different_colours(step: timeline.TimelineStep) -> None:
    colors = palette.colors({bar.phase for bar in step.bars})
    assert [lane.name for lane in step.lanes] == ["cpu:0 rank 0", "cpu:1 rank 1"]
    for first, second in itertools.chain.from_iterable(map(side_by_side, step.lanes)):
        assert difference(colors[first], colors[second], BLINDNESS["none"]) > 8, (first, second)


def test_phases_whose_names_differ_in_their_first_letter_only_are_drawn() -> None:
    record = whole(2, phases={"a" + 300 * "x": 2.0, "b" + 300 * "x": 1.0})
    for place, phase in enumerate(record.phases):
        record.timeline.append(timeline_row(0, phase, None, "cpu", 40 * place, 40 * place + 40))
    view = RecordView(record)
    for figure in (phases_figure(view), timeline_figure(view, timeline.steps(view))):
        assert not [texts for texts in illegible_texts(figure) if len(texts) == 1]
        assert [text for text in figure.texts if "xxx" in text.text]


def test_a_phase_has_one_colour_on_all_screens_of_a_run() -> None:
    """Also where a screen lacks phases that another has: ``assemble`` is in the timeline only."""
    record = whole(2, phases={**PHASES, "tidy": 2.0, "weigh": 1.0})
    for place, phase in enumerate(("assemble", "tidy", "weigh")):
        record.timeline.append(timeline_row(0, phase, None, "cpu", 40 * place, 40 * place + 40))
    view = RecordView(record)
    of_weigh = palette.of_run(view)["weigh"]
    others = {color for phase, color in palette.of_run(view).items() if phase != "weigh"}
    assert of_weigh not in others
    for figure in (phases_figure(view), timeline_figure(view, timeline.steps(view))):
        assert of_weigh in {bar.color for bar in bars(figure)}
    for text in (page.fragment(view), page.timeline_page(view, timeline.steps(view))):
        assert of_weigh in text
    red, green, blue = (int(of_weigh[place : place + 2], 16) for place in (1, 3, 5))
    shown = report.summary(view, color=True, width=100)
    assert f"38;2;{red};{green};{blue}m" in shown


COLORS = [*palette.PHASES.values(), *palette.SPARE]
PAPERS = ["#FFFFFF", style.PAPER, "#F5F5F5", "#212121", "#111111", "#000000"]
"""White and black, the card of figures, and the rows of tables in Jupyter's light and dark theme."""


def test_texts_on_a_bar_have_contrast() -> None:
    for color in COLORS:
        assert palette.contrast(color, palette.ink(color)) >= 4.5, color


def test_every_colour_is_legible_on_light_and_dark_paper() -> None:
    for color, paper in itertools.product(COLORS, PAPERS):
        assert palette.contrast(color, paper) >= 3, (color, paper)
    for color, paper in itertools.product(SERIES, ("#FFFFFF", style.PAPER)):
        assert palette.contrast(color, paper) >= 3, color


def test_titles_in_a_terminal_are_legible_on_white_and_black() -> None:
    for mood, paper in itertools.product(terminal.MOODS.values(), ("#FFFFFF", "#000000")):
        assert palette.contrast(mood.split()[1], paper) >= 4.5, mood


# --- ticks and names -----------------------------------------------------------------------------


@given(st.floats(-9, 9), st.floats(1e-6, 1), st.integers(3, 12))
def test_an_axis_has_round_ticks_enough(power: float, share: float, least: int) -> None:
    high = 10**power
    low = high * (1 - share)
    found = ticks.ticks(low, high, least)
    assert len(found) >= least
    slack = 1e-6 * (high - low)
    assert low - slack <= found[0] < found[-1] <= high + slack
    step = min(b - a for a, b in itertools.pairwise(found))
    assert any(
        math.isclose(step, digits * 10 ** round(math.log10(step / digits)), rel_tol=1e-3)
        for digits in ticks.ROUND
    )


@given(st.floats(-12, 9), st.floats(0.001, 20))
def test_a_logarithmic_axis_has_three_to_ten_ticks(power: float, decades: float) -> None:
    low, high = 10**power, 10 ** (power + decades)
    found = ticks.log_ticks(low, high)
    assert 3 <= len(found) <= 10
    assert low * (1 - 1e-6) <= found[0] < found[-1] <= high * (1 + 1e-6)


def test_a_short_name_keeps_its_end_and_its_layer() -> None:
    name = "encoder.layers.11.self_attention.linear_projection"
    assert units.short_name(name, 40) == "…11.self_attention.linear_projection"
    assert units.short_name(name, 22) == "…11…linear_projection"
    assert units.short_name("a_long_name_without_parts", 12) == "…thout_parts"
    assert units.short_name(name, 50) == name


@given(
    st.lists(
        st.lists(
            st.sampled_from(["encoder", "11", "2", "self_attention", "cross_attention", "x"]), min_size=1
        ),
        max_size=6,
    )
)
def test_short_names_differ_where_names_do(several: list[list[str]]) -> None:
    names = [".".join(parts) for parts in several]
    short = units.short_names(names, 12)
    assert len(set(short)) == len(set(names))
    for name, found in zip(names, short, strict=True):
        assert found[-1] == name[-1]
        index = next((part for part in reversed(name.split(".")[:-1]) if part.isdecimal()), "")
        assert index in found


# --- timeline.html -------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags of a page, and the addresses that it would load."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_the_timeline_page_loads_nothing(pictures: dict[str, Path]) -> None:
    content = pictures["timeline.html"].read_text()
    page = Page(content)
    assert page.addresses == []
    assert page.tags.count("script") == 1
    assert not re.search(
        r"https?:|url\(|@import|fetch\(|XMLHttpRequest|localStorage|document\.cookie", content
    )


FSDP = ["all-gather"] * 3 + ["forward", "loss"] + ["backward all-gather"] * 3 + ["reduce-scatter"] * 3
"""The phases of a step of ``fsdp`` with the default model, beside backward and optimizer."""


def of_8_ranks(record: Record) -> Record:
    """The record with 20 steps of 8 ranks, which have 13 bars each."""
    record.devices["ranks"] = [{"rank": rank, "host": "laptop", "device": f"cpu:{rank}"} for rank in range(8)]
    record.timeline = []
    for step in range(20):
        record.timeline.append(timeline_row(step, "step", None, "cpu:0", 0.0, 20_000.123))
        for rank, (place, phase) in itertools.product(range(8), enumerate([*FSDP, "backward", "optimizer"])):
            start = 1_500 * place + 7.123 * rank + step
            row = timeline_row(step, phase, rank, f"cpu:{rank}", start, start + 987.321 + 13.7 * rank)
            record.timeline += [{**row, "replica": None}, row] if rank == 0 else [row]
    return record


@pytest.mark.parametrize("strategy", ["whole", "fsdp"])
def test_the_page_of_a_run_on_8_devices_has_at_most_60_kb(strategy: str) -> None:
    record = whole(8)
    time_phases(record, PHASES, [f"cpu:{index}" for index in range(8)], 0.9, steps=17)
    for row in record.timeline[-17 * 16 :]:
        row["step"] += 3
    if strategy == "fsdp":
        record = of_8_ranks(record)
    steps = timeline.steps(record)
    content = page.timeline_page(RecordView(record), steps)
    assert len(steps) == 20
    if strategy == "fsdp":
        assert [lane.name for lane in steps[0].lanes] == [f"cpu:{rank} rank {rank}" for rank in range(8)]
    assert len(content.encode()) <= 60_000
    assert content.count("<option") == (20 if strategy == "whole" else page.MOST_BARS // (8 * 13))


def hostile() -> Record:
    """A Record with markup in every name that a user can choose."""
    made = whole(2, name=HOSTILE)
    for row in [*made.device_map, *made.shapes]:
        row["module"] = HOSTILE
    for row in made.timeline:
        row["device"] = HOSTILE
    made.config |= {"model": HOSTILE, "data": HOSTILE}
    made.environment |= {"host": HOSTILE}
    return made


def test_markup_in_names_stays_text_in_every_page(tmp_path: Path) -> None:
    record = hostile()
    report.write_files(record, tmp_path)
    page = Page((tmp_path / "timeline.html").read_text())
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.handlers == []
    fragment = Page(report.html(record))
    assert not {"script", "img"} & set(fragment.tags)
    assert fragment.handlers == []
    assert "<script" not in re.sub(r"`[^`]*`", "", report.note(record))  # a code span shows it as it is


def test_a_notebook_gets_summary_and_timeline_without_scripts() -> None:
    content = report.html(whole(2))
    page = Page(content)
    assert "script" not in page.tags
    for words in ("Verified", "Shapes", "Timeline", "Findings", "replica 1", "15 + 15"):
        assert words in content
    assert page.tags.count("style") == 1


def test_hovering_shows_shape_bytes_and_time() -> None:
    content = report.html(whole(2))
    assert "in  (15, 5)\nout (15, 2)" in content
    assert "moves 300 B" in content
    assert "0.9 ms, 45% of the step" in content


def test_a_device_without_rows_has_its_own_lane() -> None:
    steps = timeline.steps(whole(8, batches=(6,)))
    assert [lane.name for lane in steps[0].lanes if not lane.bars] == ["cpu:6 idle", "cpu:7 idle"]


# --- trace.json ----------------------------------------------------------------------------------


def test_the_chrome_trace_has_complete_events_named_processes_and_lanes(
    record: Record, tmp_path: Path
) -> None:
    report.write_files(record, tmp_path)
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == len(record.timeline)
    for event in bars:
        assert set(event) == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert event["dur"] >= 0
        assert isinstance(event["pid"], int)
    threads = [event for event in events if event["name"] == "thread_name"]
    assert len({event["args"]["name"] for event in threads}) == len(threads)
    named = {(event["pid"], event["tid"]) for event in threads}
    assert named == {(event["pid"], event["tid"]) for event in bars if event["cat"] != "step"}
    spent = 1000 * sum(record.phases["backward"])
    assert sum(event["dur"] for event in bars if event["cat"] == "backward") == pytest.approx(spent)


def test_bars_of_one_lane_of_the_trace_do_not_overlap(pictures: dict[str, Path]) -> None:
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in json.loads(pictures["trace.json"].read_text())["traceEvents"]:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"])
            )
    assert any(len(spans) > 1 for spans in lanes.values())
    for spans in lanes.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert end <= start + 0.02


# --- cheap ---------------------------------------------------------------------------------------


def test_texts_and_figures_need_neither_torch_nor_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from record_factory import whole; from dpexp import report\n"
        "report.summary(whole(2, batches=(30,)))\n"
        "assert 'numpy' not in sys.modules\n"  # which intervals need, of batches of two sizes for one
        "r = whole(2); report.summary(r); report.note(r); report.html(r)\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"report.write_files(r, Path({str(tmp_path)!r}))\n"
        "assert not {'torch', 'mlflow', 'pandas', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=HELPERS,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def test_times_and_sizes_are_shown_in_a_suitable_unit() -> None:
    assert [units.ms(value) for value in (0.0, 0.042, 0.31, 12.34, 2500.0)] == [
        "0 ms",
        "42 µs",
        "0.31 ms",
        "12.3 ms",
        "2.5 s",
    ]
    assert [units.size(value) for value in (48, 3280, 256e6, 3e12)] == [
        "48 B",
        "3.28 kB",
        "256 MB",
        "3,000 GB",
    ]
    assert [units.percent(value) for value in (0.0, 0.0042, 0.0996, 0.42)] == ["0%", "0.4%", "10%", "42%"]

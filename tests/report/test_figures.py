"""Figures of a run: what they show, as matplotlib has it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import HELPERS
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from record_factory import PHASES, hybrid, whole

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import page, style, terminal
from dpexp.report.figures import MOST_BOXES, layout_figure, phases_figure
from dpexp.study.experiment.figure import SERIES

HOSTILE = "$\\frac{1$ \x1b[2J \u202e $ <b> _^{"


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("record", [whole(1), whole(8), hybrid()], ids=["whole-1", "whole-8", "hybrid"])
def test_every_file_of_a_finished_run_is_written(record: Record, tmp_path: Path) -> None:
    written = report.write_files(record, tmp_path / "new")
    assert {path.name for path in written} == {"layout.png", "phases.png", "timeline.html", "trace.json"}
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_run_that_recorded_nothing_has_no_figures(tmp_path: Path) -> None:
    assert report.write_files(Record(), tmp_path) == []


# --- phases.png ----------------------------------------------------------------------------------


def test_a_bar_is_as_long_as_its_phase() -> None:
    figure = phases_figure(RecordView(whole(2)))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == list(PHASES)
    assert [bar.get_width() for bar in bars(figure)] == pytest.approx(list(PHASES.values()))
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars(figure)] == [style.PHASES[x] for x in PHASES]
    assert "whole on 2 virtual devices: where a step of 2 ms goes" in texts(figure).replace("\n", " ")
    assert "50%   1 ms [1 ms – 1 ms]" in texts(figure)


def test_a_phase_of_0_percent_is_not_drawn() -> None:
    figure = phases_figure(RecordView(whole(2, phases=PHASES | {"scatter": 0.0, "gather": 0.0001})))
    assert len(bars(figure)) == len(PHASES) - 2
    assert "0%   0 ms" in texts(figure)


# --- layout.png ----------------------------------------------------------------------------------


def test_a_layout_has_what_each_device_has_computes_and_gets() -> None:
    figure = layout_figure(RecordView(whole(2)))
    assert "cpu:0" in texts(figure)
    assert "(model)  48 B\ncomputes 15 rows\ngets 120 B by gather\ngets 48 B by replicate backward" in texts(
        figure
    )
    assert "copy of (model)  48 B\ncomputes 15 rows\ngets 300 B by scatter" in texts(figure)
    assert len(figure.findobj(Annotation)) == 2


def in_ring(count: int) -> Record:
    """A run of ranks that each hold a part of every module, and send to the next one."""
    record = whole(count)
    devices = record.devices["used"]
    record.devices["ranks"] = [{"rank": rank, "device": device} for rank, device in enumerate(devices)]
    record.device_map = [
        {**row, "device": device, "replicas": []} for row in record.device_map for device in devices
    ]
    sent = {"what": "all-gather", "phase": "forward", "backward": False, "bytes": 880}
    record.summary["collectives"] = [
        {"rank": rank, "batch": batch, **sent} for rank, batch in itertools.product(range(count), range(4))
    ]
    return record


@pytest.mark.parametrize(
    ("record", "boxes", "arrows"),
    [(in_ring(5), 5, 5), (in_ring(100), 2, 2), (whole(32, batches=(60,)), 3, 2), (hybrid(), 2, 2)],
    ids=["ring of 5", "ring of 100", "whole-32", "hybrid"],
)
def test_boxes_are_joined_by_arrows_and_those_alike_share_one(
    record: Record, boxes: int, arrows: int
) -> None:
    figure = layout_figure(RecordView(record))
    assert len([text for text in figure.axes[0].texts if text.get_bbox_patch()]) == boxes <= MOST_BOXES
    assert len(figure.findobj(Annotation)) == arrows
    assert max(figure.get_size_inches()) < 16


def test_modules_keep_their_end_and_the_rest_is_counted() -> None:
    record = whole(2, modules=100)
    record.device_map[0]["module"] = name = "encoder.layers.11.self_attention.output_projection_of_all_heads"
    shown = texts(layout_figure(RecordView(record)))
    assert f"{name[-30:]}  40 B" in shown
    assert "… 92 more modules" in shown


# --- names and colours ---------------------------------------------------------------------------


def test_a_name_stays_text_whatever_is_in_it(tmp_path: Path) -> None:
    record = whole(2, phases={HOSTILE: 2.0, "字_": 1.0})
    for row in [*record.device_map, *record.shapes]:
        row["module"] = HOSTILE
    record.strategy = HOSTILE
    assert len(report.write_files(record, tmp_path)) == 4
    shown = r"\$\frac{1\$ \u001b[2J \u202e \$ <b> _^{"
    for figure in (phases_figure(RecordView(record)), layout_figure(RecordView(record))):
        assert shown in texts(figure)
        assert "\x1b" not in texts(figure)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((style.luminance(one), style.luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_are_legible_on_light_and_dark_paper() -> None:
    colors = [*style.PHASES.values(), *style.SPARE]
    papers = ["#FFFFFF", style.PAPER, "#F5F5F5", "#212121", "#111111", "#000000"]
    assert all(contrast(color, style.ink(color)) >= 4.5 for color in colors)
    assert all(contrast(color, paper) >= 3 for color, paper in itertools.product(colors, papers))
    assert all(contrast(color, style.PAPER) >= 3 for color in SERIES)
    titles = [mood.split()[1] for mood in terminal.MOODS.values()]
    assert all(contrast(color, paper) >= 4.5 for color in titles for paper in ("#FFFFFF", "#000000"))


def test_a_phase_has_one_colour_on_all_screens_of_a_run() -> None:
    view = RecordView(whole(2, phases={**PHASES, "tidy": 2.0, "weigh": 1.0}))
    color = style.of_run(view)["weigh"]
    assert color not in {other for phase, other in style.of_run(view).items() if phase != "weigh"}
    assert color in {to_hex(bar.get_facecolor()).upper() for bar in bars(phases_figure(view))}
    assert color in page.fragment(view)
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}m" in report.summary(view, color=True, width=100)


def test_numbered_phases_that_follow_each_other_differ() -> None:
    colors = style.colors(f"allreduce_bucket{number}" for number in range(30))
    several = [colors[f"allreduce_bucket{number}"] for number in range(30)]
    assert all(one != other for one, other in itertools.pairwise(several))


# --- trace.json, and what is imported ------------------------------------------------------------


@pytest.mark.parametrize("record", [whole(2), hybrid()], ids=["whole", "hybrid"])
def test_the_trace_has_every_bar_in_named_lanes_which_do_not_overlap(record: Record, tmp_path: Path) -> None:
    report.write_files(record, tmp_path)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == len(record.timeline)
    spent = 1000 * sum(record.phases["backward"])
    assert sum(event["dur"] for event in bars if event["cat"] == "backward") == pytest.approx(spent)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in bars if event["cat"] != "step"}
    for lane in named:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in bars if (e["pid"], e["tid"]) == lane)
        assert all(end <= start + 0.02 for (_, end), (start, _) in itertools.pairwise(spans))


def test_texts_need_no_matplotlib_and_figures_neither_torch_nor_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from record_factory import whole; from dpexp import report\n"
        "report.summary(whole(2, batches=(30,)))\n"
        "assert 'numpy' not in sys.modules\n"  # which intervals need, of batches of two sizes for one
        "r = whole(2); report.summary(r); report.note(r); report.html(r)\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"report.write_files(r, Path({str(tmp_path)!r}))\n"
        "assert not {'torch', 'mlflow', 'pandas', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HELPERS, env=environment)

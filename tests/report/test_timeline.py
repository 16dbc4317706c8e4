"""The picture of a step: timeline.html in a real browser, and trace.json with all steps."""

import itertools
import json
import re
from pathlib import Path
from typing import Literal

import pytest
from helpers.record_factory import PHASES, hybrid, timeline_row, whole
from playwright.sync_api import Browser

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report.timeline import TimelineStep, timeline_steps, typical_step

BARS = """() => [...document.querySelectorAll(".track")].flatMap((track, lane) =>
    [...track.children].map((bar) => {
        const [outer, box] = [track, bar].map((element) => element.getBoundingClientRect());
        return {lane, name: bar.textContent, title: bar.title,
            left: (box.left - outer.left) / outer.width, width: box.width / outer.width};
    }))"""
PAPER = "() => getComputedStyle(document.body).backgroundColor"
"""What the browser draws: each bar with its place as a part of its lane."""


def steps_of(record: Record) -> list[TimelineStep]:
    return timeline_steps(RecordView(record))


def of_ranks(count: int) -> Record:
    """A record with one step of so many ranks, whose all-reduce overlaps with backward."""
    record = whole(count)
    ranks = [{"rank": rank, "host": "laptop", "device": f"cpu:{rank}"} for rank in range(count)]
    record.devices["ranks"] = ranks
    record.timeline = [timeline_row(0, "step", None, "cpu:0", 0.0, 1000.0)]
    for rank in range(count):
        for phase, start, end in (("forward", 0, 400), ("backward", 400, 900), ("allreduce", 600, 1000)):
            row = timeline_row(0, phase, rank, f"cpu:{rank}", float(start), float(end))
            record.timeline += [{**row, "replica": None}, row] if rank == 0 else [row]
    return record


def test_phases_replicas_and_ranks_have_lanes_whose_bars_do_not_overlap() -> None:
    (step, *_) = steps_of(whole(2))
    assert [lane.name for lane in step.lanes] == ["cpu:0", "cpu:0 replica 0", "cpu:1 replica 1"]
    (step,) = steps_of(of_ranks(2))
    assert [lane.name for lane in step.lanes] == ["cpu:0 rank 0", "cpu:1 rank 1"]
    levels = [[bar.name for bar in level] for level in step.lanes[0].levels]
    assert levels == [["forward", "backward"], ["allreduce"]]
    idle = [lane.name for lane in steps_of(whole(8, batches=(6,)))[0].lanes if not lane.levels]
    assert idle == ["cpu:6 idle", "cpu:7 idle"]


def test_the_typical_step_is_the_one_nearest_to_the_medians_of_steps_of_the_usual_size() -> None:
    record = whole(2)
    record.timeline = []
    for number, scale in enumerate((1.0, 3.0, 1.5, 1.6)):  # the last batch of an epoch is smaller
        one = whole(2, phases={name: scale * ms for name, ms in PHASES.items()})
        record.timeline += [row | {"step": number} for row in one.timeline if row["step"] == 0]
    view = RecordView(record)
    step = typical_step(view)
    assert step is not None
    assert (step.number, step.rows) == (2, 30)


def test_the_page_shows_one_step_in_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    report.write_files(whole(2), tmp_path)
    content = (tmp_path / "timeline.html").read_text()
    assert not re.search(r"<script|https?:|url\(|@import|\son\w+=", content), "static, and loads nothing"
    page = browser.new_page(viewport={"width": 1000, "height": 400})
    page.goto((tmp_path / "timeline.html").as_uri())
    bars = page.evaluate(BARS)
    starts = list(itertools.accumulate(PHASES.values(), initial=0.0))
    total = starts.pop()
    outer = [bar for bar in bars if bar["lane"] == 0]
    assert [bar["name"] for bar in outer] == list(PHASES)
    assert [bar["left"] for bar in outer] == pytest.approx([start / total for start in starts], abs=2e-3)
    assert [bar["width"] for bar in outer] == pytest.approx([ms / total for ms in PHASES.values()], abs=2e-3)
    assert [bar["name"] for bar in bars if bar["lane"]] == ["replica 0", "replica 1"]
    computed = next(bar["title"] for bar in bars if bar["name"] == "replica 0")
    assert computed == "parallel_apply, replica 0\non cpu:0\n0.9 ms, 45% of the step"
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        red, green, blue = map(int, re.findall(r"\d+", page.evaluate(PAPER)))
        assert (min(red, green, blue) > 200, max(red, green, blue) < 50) == (
            scheme == "light",
            scheme == "dark",
        )
    page.set_viewport_size({"width": 360, "height": 400})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


@pytest.mark.parametrize("record", [whole(2), hybrid(), of_ranks(2)], ids=["whole", "hybrid", "ranks"])
def test_the_trace_has_every_bar_in_named_lanes_which_do_not_overlap(record: Record, tmp_path: Path) -> None:
    report.write_files(record, tmp_path)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    drawn = [
        bar for step in steps_of(record) for lane in step.lanes for level in lane.levels for bar in level
    ]
    assert len(bars) == len(steps_of(record)) + len(drawn)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in bars if event["cat"] != "step"}
    for lane in named:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in bars if (e["pid"], e["tid"]) == lane)
        assert all(end <= start + 0.02 for (_, end), (start, _) in itertools.pairwise(spans))

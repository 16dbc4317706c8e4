"""timeline.html and what a notebook shows: they load nothing, and markup stays text."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from record_factory import PHASES, time_phases, timeline_row, whole

from dpexp import report
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import page, timeline

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


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


def test_the_timeline_page_loads_nothing(tmp_path: Path) -> None:
    report.write_files(whole(2), tmp_path)
    content = (tmp_path / "timeline.html").read_text()
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

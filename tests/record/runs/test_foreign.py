"""Journals that dpexp did not write, or hardly began: each is named and skipped, and blocks no other run."""

import copy
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import journals
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.journal.reader import JournalReader
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.index import summaries
from dpexp.record.schema import wrong_types
from dpexp.report import summary
from dpexp.report.compare.grouping import compare
from dpexp.report.compare.tables import comparison_sections
from dpexp.report.render import run_list, terminal
from dpexp.tracking.content import content, tables
from dpexp.tracking.delivery import sync
from dpexp.tracking.delivery.ledger import delivered

OTHERS: list[Any] = [
    None,
    "x",
    "",
    5,
    -1,
    -1.5,
    True,
    math.nan,
    math.inf,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    ["x", 2],
]
"""Values of every type, in place of one that dpexp wrote."""
VERIFICATION: dict[str, Any] = {
    "checked": True,
    "dtype": "float64",
    "tolerance": 1e-12,
    "passed": False,
    "note": "n",
    "steps": 3,
    **{f"{kind}_error": 0.5 for kind in ("output", "gradient", "loss", "buffer", "parameter", "optimizer")},
    "worst": {"kind": "gradients", "step": 1, "tensor": "fc.weight", "error": 0.5},
    "cause": "c",
    "rounding": {"dtype": "bfloat16", "autocast": "", "compile": False, "passed": True, "output_error": 0.1},
}
"""A verification with every key."""


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value stands in an entry: keys and indices, of long lists the first two."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from places(item, (*place, index))


def entries(runs: Path) -> list[dict[str, Any]]:
    """The entries of a run with shapes, device map, timeline, checks and an error."""
    path = runs.with_name("valid") / "valid" / JOURNAL
    if not path.exists():
        journal = journals.begin(path.parents[1], "valid", verification=VERIFICATION)
        journals.observe(journal)
        journals.step(journal, 0, 30)
        journals.phases(journal)
        ranks = [{"rank": 0, "host": "laptop", "device": "cpu:0"}]
        journal.set({"devices.ranks": ranks, "environment.accelerators": [{"name": "GPU", "memory": 1}]})
        journals.end(journal, "failed", {"type": "E", "message": "m", "traceback": "t"})
    return list(JournalReader(path))


def line_of(entry: object) -> bytes:
    """A line with the right checksum, whatever the entry is: ``encode_line`` takes only those of dpexp."""
    body = json.dumps(entry).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def write(runs: Path, run_id: str, changed: list[dict[str, Any]]) -> Path:
    folder = runs / run_id
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    lines = [{key: value for key, value in entry.items() if key != "crc"} for entry in changed]
    (folder / JOURNAL).write_bytes(b"".join(map(line_of, lines)))
    return folder


def mutated(original: list[dict[str, Any]], number: int, place: tuple[Any, ...], value: Any) -> list[Any]:
    changed = copy.deepcopy(original)
    parent: Any = changed[number]
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    return changed


def read_everywhere(home: Path, folder: Path) -> str:
    """What list, show, reap, sync and report do with a run, without a store; returns what is said of it."""
    (listed,) = [found for found in summaries(home / "runs") if found.run_id == folder.name]
    said = run_list.runs([listed], delivered(home, [folder.name])) + listed.problem
    assert folder in sync.dead(home)
    assert sync.undelivered(home) is not None
    closed = sync.close(folder)
    compared = compare([folder])
    said += terminal.terminal_text(comparison_sections(compared)) + closed.message
    try:
        record = load(folder)
    except JournalError as error:
        assert closed.state == sync.SKIPPED
        assert listed.problem
        assert compared.unreadable
        return said + str(error)
    assert wrong_types(record.to_dict()) == []
    (
        content.expected_metrics(record),
        content.params(record),
        content.tags(record),
        tables.record_tables(record),
    )
    return said + summary(record)


def test_a_phase_without_end_is_drawn(runs: Path) -> None:
    """Its share of the step is infinite."""
    original = entries(runs)
    number = next(place for place, entry in enumerate(original) if "timeline" in entry.get("extend", {}))
    folder = write(runs, "foreign", mutated(original, number, ("extend", "timeline", 1, "end_us"), math.inf))
    assert read_everywhere(runs.parent, folder)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_reader_fails_on_a_value_of_another_type(runs: Path, data: st.DataObject) -> None:
    original = entries(runs)
    number = data.draw(st.integers(0, len(original) - 1))
    place = data.draw(st.sampled_from(sorted(places(original[number]), key=str)))
    value = data.draw(st.sampled_from(OTHERS))
    assert read_everywhere(runs.parent, write(runs, "foreign", mutated(original, number, place, value)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("worst", 5),
        ("worst", {}),
        ("worst", VERIFICATION["worst"] | {"error": "x"}),
        ("cause", 5),
        ("steps", "x"),
        ("optimizer_error", []),
        ("rounding", 5),
    ],
)
def test_a_verification_of_other_types_is_named_and_skipped(runs: Path, key: str, value: Any) -> None:
    original = entries(runs)
    (number,) = (place for place, entry in enumerate(original) if "verification" in entry.get("set", {}))
    folder = write(runs, "foreign", mutated(original, number, ("set", "verification", key), value))
    assert f"was not written by dpexp: verification.{key}" in read_everywhere(runs.parent, folder)


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_errors_that_are_not_finite_are_read_back_from_a_record(runs: Path, error: float) -> None:
    changes = {"worst": VERIFICATION["worst"] | {"error": error}, "optimizer_error": error}
    changes["rounding"] = VERIFICATION["rounding"] | {"single_output_error": error}
    record = finish(journals.complete(runs, "apart", verification=VERIFICATION | changes))
    found = Record.from_dict(json.loads(record.to_json())).verification
    assert repr(found) == repr(record.verification)

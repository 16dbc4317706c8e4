"""The journal and its fold: a flushed line survives damage to the file and the death of its process."""

import fcntl
import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import journals
from helpers.command_lines import ROOT

from dpexp.record.files import JournalError, check_writable
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import JOURNAL, RECORD, Journal, JournalReader, is_open
from dpexp.record.record import Record
from dpexp.record.runs import summaries
from dpexp.record.steps import spread
from dpexp.report import listing, summary

# --- writing -------------------------------------------------------------------------------------


def test_a_new_journal_has_its_writer_as_soon_as_it_has_its_name(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in between would take the run for a dead one."""
    seen: list[bool] = []
    flock = fcntl.flock

    def watched(file: Any, operation: int) -> None:
        path = runs / "new" / JOURNAL
        if operation & fcntl.LOCK_EX:
            seen.append(path.exists() and not is_open(path))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", watched)
    with Journal(runs, "new") as journal:
        assert load_record(journal.folder).status == "running"
    assert seen == [False]


def test_a_flush_writes_one_operation_a_line_and_syncs_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", recorded)
    with Journal(runs, "durable") as journal:
        assert [path for path, _ in synced] == [str(runs / "durable"), str(runs)]
        journal.flush()
        journal.set(status="finished")
        journal.extend({"steps.loss": [1.0], "steps.time_ms": [2.0]})
        journal.extend({"steps.loss": [3.0]})
        journal.flush()
        assert [synced[2][0], synced[3]] == [
            str(journal.path),
            (str(journal.path), journal.path.stat().st_size),
        ]
    assert len(synced) == 4
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [[*line] for line in lines] == [["at", "set"], ["at", "extend"], ["at", "set"]]
    assert lines[1]["extend"] == {"steps.loss": [1.0, 3.0], "steps.time_ms": [2.0]}


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".", "a" * 65, "a\nb", "-rf"])
def test_a_run_id_cannot_leave_the_runs(runs: Path, run_id: str) -> None:
    with pytest.raises(JournalError, match="letters, digits"):
        Journal(runs, run_id)
    assert not runs.exists()


def test_a_home_that_cannot_be_used_is_named_and_a_check_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "new"
    check_writable(home / "runs")
    assert not home.exists()
    with Journal(home / "runs", "a"), pytest.raises(JournalError, match="a run id is used once"):
        Journal(home / "runs", "a")
    with pytest.raises(JournalError, match="mistyped is not a directory: make it, or correct DPEXP_HOME"):
        Journal(tmp_path / "mistyped" / "home" / "runs", "a")
    (tmp_path / "runs").symlink_to("gone")
    with pytest.raises(JournalError, match=r"/runs is not a directory: rename what is there"):
        Journal(tmp_path / "runs", "a")


def test_a_journal_is_open_until_its_writer_dies_whatever_it_has_forked(runs: Path) -> None:
    code = (
        "import os, sys; from helpers import journals; from pathlib import Path\n"
        "j = journals.begin(Path(sys.argv[1]), 'held'); journals.step(j, 0, 40)\n"
        "started = os.pipe()\n"
        "if not (child := os.fork()):\n"
        "    os.write(started[1], b'1'); os.close(1); os.close(2); os.read(0, 1); os._exit(0)\n"
        "j.extend({'steps.loss': [9.0]}); os.read(started[0], 1)\n"
        "print(child, flush=True); os.read(started[0], 1)"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writer = subprocess.Popen([sys.executable, "-c", code, str(runs)], env=environment, **pipes)
    assert writer.stdout is not None
    child, folder = int(writer.stdout.readline()), runs / "held"
    assert is_open(folder / JOURNAL)
    assert load_record(folder).status == "running"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    os.kill(child, 0)  # it lives
    assert not is_open(folder / JOURNAL)
    record = load_record(folder)
    assert (record.status, len(record.steps["loss"])) == ("killed", 40)
    assert record.ended is not None
    writer.communicate()


# --- reading -------------------------------------------------------------------------------------


def test_a_finished_run_has_all_that_was_set_and_extended(runs: Path) -> None:
    path = journals.complete(runs, steps=60)
    record = load_record(path.parent)
    assert (record.status, record.damage) == ("finished", [])
    assert record.steps["time_ms"] == [1.0 + i / 1000 for i in range(60)]
    assert record.metrics == {"accuracy": [0.5, 0.75]}
    assert record.summary["step_ms"] == spread(record.steps["time_ms"])
    assert record.summary["phases_ms"].keys() == record.phases.keys() > {"scatter", "parallel_apply"}
    assert finish(path) == record == load_record(path.parent) == load_record(path.with_name(RECORD))
    assert json.loads(path.with_name(RECORD).read_bytes()) == record.to_dict()


@pytest.mark.parametrize("name", [path.name for path in journals.WRITTEN.iterdir() if path.is_dir()])
def test_a_journal_cut_at_any_byte_folds_to_its_complete_lines(name: str, tmp_path: Path) -> None:
    """Cut around the end of each line, and at 200 other bytes."""
    content = (journals.WRITTEN / name / JOURNAL).read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    others = random.Random(0).sample(range(ends[0], len(content)), 200)
    losses = [len(json.loads(line).get("extend", {}).get("steps.loss", [])) for line in content.splitlines()]
    cut = tmp_path / JOURNAL
    for length in sorted({*others, *(end + by for end in ends for by in (-1, 0, 1))}):
        if not ends[0] <= length < len(content):
            continue
        cut.write_bytes(content[:length])
        lines = sum(end <= length for end in ends)
        record = load_record(tmp_path)
        assert len(list(JournalReader(cut))) == lines
        assert len(record.steps["loss"]) == sum(losses[:lines])
        assert (record.status, record.damage) == ("killed", [])
        assert record.ended is not None


def test_lines_that_cannot_be_read_are_skipped_and_counted(runs: Path) -> None:
    path = journals.complete(runs, steps=100)
    losses, lines = load_record(path.parent).steps["loss"], path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:20] + b"\xff" + lines[3][21:]  # steps 25 to 49
    lines[5:5] = [b"[1, 2]\n", b'{"extend": 5}\n', b'{"extend": {"steps.loss": 5}}\n']
    path.write_bytes(b"".join(lines))
    record = finish(path)
    assert record.damage == [f"4 lines of {len(lines)} cannot be read"]
    assert record.steps["loss"] == losses[:25] + losses[50:]
    assert "DAMAGED: 4 lines of" in summary(record)
    assert "finished, damaged" in listing.runs(summaries(runs), {})


def test_a_newer_schema_is_refused_with_the_version_to_install(runs: Path) -> None:
    journal = journals.begin(runs, schema=2)
    journal.close()
    with pytest.raises(JournalError, match=r"schema is 2 .* reads up to 1\. Install dpexp 2\.0 or newer"):
        load_record(journal.folder)
    with pytest.raises(JournalError, match=r"Install dpexp 3\.0"):
        Record.from_dict({"schema": 3})


def test_what_is_not_of_dpexp_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal at"):
        load_record(tmp_path)
    for name, message in ((RECORD, "not a Record"), (JOURNAL, "no line that can be read names a run")):
        (tmp_path / name).write_bytes(os.urandom(4096))
        with pytest.raises(JournalError, match=message):
            load_record(tmp_path)
    with pytest.raises(JournalError, match="not a Record"):
        load_record(tmp_path / RECORD)


def test_a_record_that_is_older_than_its_journal_or_broken_is_not_read(runs: Path) -> None:
    folder = journals.complete(runs).parent
    written = (folder / JOURNAL).stat().st_mtime_ns + 10**6
    (folder / RECORD).write_text(Record(run_id=folder.name, status="killed").to_json())
    os.utime(folder / RECORD, ns=(written, written))
    assert load_record(folder).status == "killed"
    os.utime(folder / JOURNAL, ns=(written + 1, written + 1))
    assert load_record(folder).status == "finished"
    (folder / RECORD).write_text('{"run_id": "a", ')
    assert load_record(folder).status == "finished"


def test_the_journal_of_a_sweep_that_is_resumed_goes_on_after_its_last_complete_line(runs: Path) -> None:
    journal = journals.begin(runs, "again")
    journal._file.close()
    with journal.path.open("ab") as file:
        file.write(b'{"at":1,"ext')
    again = Journal.reopen(journal.folder)
    with pytest.raises(JournalError, match="another process is writing it"):
        Journal.reopen(journal.folder)
    again.set(name="second")
    journals.end(again)
    record = load_record(journal.folder)
    assert (record.status, record.name, record.damage) == ("finished", "second", [])


def test_a_record_is_written_only_of_a_run_that_has_ended(runs: Path) -> None:
    """Whoever closes a sweep may find that it has just been resumed."""
    journal = journals.begin(runs, "again")
    assert finish(journal.path).status == "running"
    assert not (journal.folder / RECORD).exists()
    journal.close()
    assert finish(journal.path).status == load_record(journal.folder).status == "killed"
    with Journal.reopen(journal.folder):
        assert not (journal.folder / RECORD).exists()


def test_inf_and_nan_survive_json_and_are_counted(runs: Path) -> None:
    journal = journals.begin(runs)
    journal.extend({"steps.loss": [1.0, math.inf, math.nan, -math.inf], "steps.time_ms": [1.0] * 4})
    record = finish(journals.end(journal))
    assert record.summary["nonfinite"] == {"loss": {"nan": 1, "inf": 2, "first": 1}}
    text = (journal.folder / RECORD).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["steps"]["loss"] == [1.0, "inf", "nan", "-inf"]
    again = load_record(journal.folder).steps["loss"]
    assert again[1] == math.inf
    assert math.isnan(again[2])

"""The journal and its fold: a flushed line survives damage to the file and the death of its process."""

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journals
import needs
import pytest
from command_lines import ROOT

from dpexp.record.files import JournalError, check_writable
from dpexp.record.journal import JOURNAL, RECORD, Journal, JournalReader, is_open
from dpexp.record.record import Record, finish, fold
from dpexp.record.redact import redact
from dpexp.record.runs import IMPORTED, UnknownRunError, find, import_journal, summaries
from dpexp.record.steps import spread
from dpexp.report import listing, summary


def in_process(code: str, *arguments: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A Python process that runs the code with ``sys.argv[1:]``, with pipes for stdin and stdout."""
    command = [*before, sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/helpers'}"}
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# --- durability ----------------------------------------------------------------------------------


def test_a_new_journal_has_its_writer_as_soon_as_it_has_its_name(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in between would call the run damaged: its journal is empty, and nobody writes it."""
    seen: list[bool] = []
    flock = fcntl.flock

    def watched(file: Any, operation: int) -> None:
        path = runs / "new" / JOURNAL
        if operation & fcntl.LOCK_EX:
            seen.append(path.exists() and not is_open(path))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", watched)
    with Journal(runs, "new") as journal:
        assert Record.load(journal.folder).status == "running"
    assert seen
    assert not any(seen)


def test_every_flush_syncs_and_a_new_journals_name_is_durable(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((path, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", recorded)
    with Journal(runs, "durable") as journal:
        created = {path for path, _ in synced}
        assert {str(runs), str(runs / "durable")} <= created
        for number in range(3):
            journal.extend({"steps.loss": [number]})
            journal.flush()
            assert synced[-1] == (str(journal.path), journal.path.stat().st_size)
            assert len([path for path, _ in synced if path == str(journal.path)]) == number + 1


def test_an_interrupt_during_a_sync_writes_no_line_twice(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def interrupted(descriptor: int) -> None:
        fsync(descriptor)
        raise KeyboardInterrupt

    journal = Journal(runs, "interrupted")
    journal.extend({"steps.loss": [1.0, 2.0]})
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.flush()
    monkeypatch.setattr(os, "fsync", fsync)
    journal.extend({"steps.loss": [3.0]})
    journal.close()
    assert fold(journal.path).steps["loss"] == [1.0, 2.0, 3.0]
    assert fold(journal.path).damage == []


# --- folding -------------------------------------------------------------------------------------


def test_a_finished_run_folds_to_all_that_was_set_and_extended(runs: Path) -> None:
    record = fold(journals.complete(runs, steps=60))
    assert record.status == "finished"
    assert record.damage == []
    assert record.steps["time_ms"] == [1.0 + i / 1000 for i in range(60)]
    assert record.metrics == {"accuracy": [0.5, 0.75]}
    assert record.summary["step_ms"] == spread(record.steps["time_ms"])
    assert record.summary["phases_ms"] == dict.fromkeys(journals.PHASES, 0.025)
    assert record.data["samples"] == 30


def test_record_json_holds_the_same_record_as_the_journal(runs: Path) -> None:
    path = journals.complete(runs)
    written = finish(path)
    assert Record.load(path.parent) == written == fold(path)
    assert json.loads((path.parent / RECORD).read_bytes()) == written.to_dict()


def test_a_journal_cut_at_any_byte_folds_to_its_complete_lines(runs: Path, tmp_path: Path) -> None:
    content = journals.complete(runs, steps=50, config={}, environment={}).read_bytes()
    complete = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    cut = tmp_path / JOURNAL
    for length in range(complete[0], len(content)):
        cut.write_bytes(content[:length])
        lines = sum(1 for end in complete if end <= length)
        record = fold(cut)
        assert len(list(JournalReader(cut))) == lines
        assert len(record.steps["loss"]) == min(50, 25 * max(0, lines - 2))
        assert record.status == "killed"
        assert record.ended is not None
        assert record.damage == []


def test_lines_that_cannot_be_read_are_skipped_and_counted(runs: Path) -> None:
    path = journals.complete(runs, steps=100)
    whole, lines = fold(path), path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:20] + b"\xff" + lines[3][21:]  # steps 25 to 49
    path.write_bytes(b"".join([*lines[:5], b"[1, 2]\n", b'{"extend": 5}\n', *lines[5:]]))
    record = finish(path)
    assert record.damage == ["3 lines of 10 cannot be read"]
    assert record.steps["loss"] == whole.steps["loss"][:25] + whole.steps["loss"][50:]
    assert "DAMAGED: 3 lines of 10 cannot be read" in summary(record)
    assert "finished, damaged" in listing.runs(summaries(runs), {})


def test_a_journal_of_a_newer_schema_is_refused_with_the_version_to_install(runs: Path) -> None:
    journal = journals.begin(runs, schema=2)
    journal.close()
    with pytest.raises(JournalError, match=r"schema is 2 .* reads up to 1\. Install dpexp 2\.0 or newer"):
        fold(journal.path)
    with pytest.raises(JournalError, match=r"Install dpexp 3\.0"):
        Record.from_dict({"schema": 3})


def test_a_file_that_is_not_a_journal_is_refused_by_name(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(os.urandom(4096))
    for path, message in (
        (garbage, "no line that can be read names a run"),
        (tmp_path / "none", "no journal at"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(JournalError, match=message):
            fold(path)


def test_a_key_that_records_do_not_have_is_ignored(runs: Path) -> None:
    journal = journals.begin(runs)
    journal.set({"apply": 1, "memory": {"cpu": 7}, "origin": "of an earlier version"})
    journal.close()
    record = fold(journal.path)
    assert record.memory == {"cpu": 7}
    assert record.damage == []
    assert callable(record.apply)


def test_a_record_that_is_older_than_its_journal_is_not_believed(runs: Path) -> None:
    folder = journals.complete(runs).parent
    finish(folder / JOURNAL)
    later = (folder / RECORD).stat().st_mtime_ns + 10**6
    (folder / RECORD).write_text(Record(run_id=folder.name, status="killed").to_json())
    os.utime(folder / RECORD, ns=(later, later))
    assert Record.load(folder).status == "killed"
    os.utime(folder / JOURNAL, ns=(later + 1, later + 1))
    assert Record.load(folder).status == "finished"


def test_a_journal_of_an_earlier_version_is_read(runs: Path) -> None:
    """Its lines have numbers, lengths and checksums as well."""
    path = journals.complete(runs)
    whole = fold(path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    earlier = [line | {"seq": number, "from": {}, "crc": "8d3f01aa"} for number, line in enumerate(lines)]
    path.write_text("".join(json.dumps(line) + "\n" for line in earlier))
    assert fold(path) == whole


def test_a_run_that_begins_again_has_what_it_records_after(runs: Path) -> None:
    journals.step(journal := journals.begin(runs, "again"), 0, 50)
    journal._file.close()
    with journal.path.open("ab") as file:
        file.write(b'{"at":1,"ext')
    with Journal.reopen(journal.folder) as again:
        journals.step(again, 0, 10)
        journals.end(again)
    record = fold(journal.path)
    assert (record.status, len(record.steps["loss"]), record.damage) == ("finished", 10, [])


def test_inf_and_nan_survive_json_and_are_counted(runs: Path) -> None:
    journal = journals.begin(runs)
    journal.extend({"steps.loss": [1.0, math.inf, math.nan, -math.inf], "steps.time_ms": [1.0] * 4})
    record = finish(journals.end(journal))
    assert record.summary["nonfinite"] == {"loss": {"nan": 1, "inf": 2, "first": 1}}
    text = (runs / record.run_id / RECORD).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["steps"]["loss"] == [1.0, "inf", "nan", "-inf"]
    again = Record.load(runs / record.run_id).steps["loss"]
    assert again[1] == math.inf
    assert math.isnan(again[2])


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".", "..", "a" * 65, "a\nb", "-rf"])
def test_a_run_id_cannot_leave_the_runs(runs: Path, run_id: str) -> None:
    with pytest.raises(JournalError, match="letters, digits"):
        Journal(runs, run_id)
    assert not runs.exists()


def test_a_home_is_made_where_its_parent_exists(tmp_path: Path) -> None:
    with Journal(tmp_path / "home" / "runs", "a"):
        assert (tmp_path / "home" / "runs" / "a").is_dir()
    with pytest.raises(JournalError, match="mistyped is not a directory: make it, or correct DPEXP_HOME"):
        Journal(tmp_path / "mistyped" / "home" / "runs", "a")
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize("make", [Path.touch, lambda runs: runs.symlink_to("gone")])
def test_runs_that_are_not_a_folder_are_named(runs: Path, make: Callable[[Path], None]) -> None:
    make(runs)
    with pytest.raises(JournalError, match=r"/runs is not a directory: rename what is there"):
        Journal(runs, "a")


def test_a_check_of_the_runs_leaves_nothing(runs: Path) -> None:
    check_writable(runs)
    assert not list(runs.parent.iterdir())
    runs.mkdir()
    check_writable(runs)
    assert not list(runs.iterdir())


def test_a_journal_is_open_until_its_writer_dies(runs: Path) -> None:
    code = (
        "import sys, journals; from pathlib import Path\n"
        "j = journals.begin(Path(sys.argv[1]), 'held'); journals.step(j, 0, 40)\n"
        "j.extend({'steps.loss': [9.0]}); print('ready', flush=True); sys.stdin.read()"
    )
    writer = in_process(code, runs)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    path = runs / "held" / JOURNAL
    assert is_open(path)
    assert fold(path).status == "running"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert not is_open(path)
    record = fold(path)
    assert (record.status, len(record.steps["loss"])) == ("killed", 40)
    assert record.ended is not None


FULL_DISK = """
import sys, journals
from pathlib import Path
from dpexp.record.record import finish
from dpexp.record.files import JournalError
home = Path(sys.argv[1])
journal = journals.begin(home / "runs", "full")
try:
    for first in range(0, 10**6, 200):
        journals.step(journal, first, 200)
except JournalError as error:
    print(error)
journal.set(status="failed", ended="2026-01-01T00:00:00+00:00", error={"message": "full"})
journal.close()
record = finish(journal.path)
print(record.status, len(record.steps["loss"]) % 200, len(record.steps["loss"]) > 1000, record.damage)
"""


def test_a_full_disk_ends_the_run_cleanly_and_keeps_the_written_lines(dpexp_home: Path) -> None:
    before = needs.disk(dpexp_home, "size=512k")
    output = in_process(FULL_DISK, dpexp_home, before=before).communicate()[0].splitlines()
    assert "No space left on device" in output[0]
    assert "lines are safe" in output[0]
    assert output[1] == "failed 0 True ['record.json could not be written: No space left on device']"


# --- credentials ---------------------------------------------------------------------------------


def test_credentials_never_reach_a_journal(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", 'quite "secret"')
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    argv = ["run.py", "--data", "postgresql://me:p@ss@db/x?password=abcdef", 'quite "secret"', "hunter22"]
    finish(journals.complete(runs, environment={"argv": argv}, error={"message": "at https://u:hunter22@h"}))
    for path in runs.rglob("*"):
        if path.is_file():
            text = path.read_text()
            for secret in ("hunter22", "p@ss", "abcdef", "secret"):
                assert secret not in text, path
    assert fold(next(runs.glob(f"*/{JOURNAL}"))).damage == []


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("http://user:pass@host:1/p", "http://***@host:1/p"),
        ("https://token@host and ftp://h", "https://***@host and ftp://h"),
        ("https://h/x?api_key=abc&y=1", "https://h/x?api_key=***&y=1"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_a_url_loses_its_login_and_nothing_else(text: str, clean: str) -> None:
    assert redact(text) == clean


# --- the index ---------------------------------------------------------------------------------


def test_a_run_is_found_by_id_prefix_name_and_last(runs: Path) -> None:
    finish(journals.complete(runs, "aab1", name="first", started="2026-01-01T00:00:00+00:00"))
    finish(journals.complete(runs, "aac2", name="again", started="2026-01-02T00:00:00+00:00"))
    finish(journals.complete(runs, "bbb3", name="again", started="2026-01-03T00:00:00+00:00"))
    expected = {"aab1": "aab1", "aac": "aac2", "b": "bbb3", "first": "aab1", "again": "bbb3", "last": "bbb3"}
    assert {name: find(runs, name).name for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa", r"begins 2 run ids \(aab1, aac2\): use a longer prefix"),
        ("agian", "did you mean 'again'"),
        ("../runs/aab1", "no run"),
        ("/etc/passwd", "no run"),
        ("", "no run"),
        (".", "no run"),
    ],
)
def test_a_name_without_a_unique_run_is_refused(runs: Path, name: str, message: str) -> None:
    finish(journals.complete(runs, "aab1", name="first"))
    finish(journals.complete(runs, "aac2", name="again"))
    with pytest.raises(UnknownRunError, match=message):
        find(runs, name)


def test_a_list_shows_finished_running_and_unreadable_runs(runs: Path) -> None:
    finish(journals.complete(runs, "done", started="2026-01-02T00:00:00+00:00"))
    running = journals.begin(runs, "going", started="2026-01-03T00:00:00+00:00")
    (runs / "odd").mkdir()
    (runs / "odd" / JOURNAL).write_text("no journal\n")
    (runs / "wrong").mkdir()
    (runs / "wrong" / RECORD).write_text('{"run_id": "wrong", "steps": {"time_ms": 5}, "devices": []}')
    assert [(run.run_id, run.status) for run in summaries(runs)] == [
        ("going", "running"),
        ("done", "finished"),
        ("wrong", "unreadable"),
        ("odd", "unreadable"),
    ]
    running.close()


def test_a_name_cannot_command_the_terminal(runs: Path) -> None:
    finish(journals.complete(runs, "evil", name="\x1b[31mred\x1b]0;title\x07\nnext line"))
    text = listing.runs(summaries(runs), {"evil": "no"})
    assert text.count("\n") == 1
    assert not set(text) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["cpu"], "cpu"),
        (["cpu", "cpu:0"], "cpu, cpu:0"),
        (["cpu", "cpu:0", "cpu:1"], "cpu, cpu:0-1"),
        (["cuda:0", "cuda:1", "cuda:2", "cuda:5"], "cuda:0-2, cuda:5"),
        (["cuda:0", "cuda:0"], "cuda:0, cuda:0"),
    ],
)
def test_neighbouring_devices_are_shown_together(names: list[str], shown: str) -> None:
    assert listing.device_ranges(names) == shown


# --- journals from elsewhere ---------------------------------------------------------------------


def test_a_journal_from_another_machine_joins_the_runs(runs: Path, tmp_path: Path) -> None:
    foreign = journals.complete(tmp_path / "runs", "abroad")
    folder = import_journal(foreign, runs)
    assert folder == runs / "abroad"
    assert (folder / JOURNAL).read_bytes() == foreign.read_bytes()
    assert Record.load(folder) == fold(foreign)
    assert (folder / IMPORTED).exists()
    assert import_journal(foreign, runs) == folder
    assert not list(runs.glob(".import*"))


def test_a_longer_copy_of_a_journal_replaces_a_shorter_one(runs: Path, tmp_path: Path) -> None:
    foreign = journals.complete(tmp_path / "runs", "grown")
    content = foreign.read_bytes()
    half = content[: content.index(b"\n", len(content) // 2) + 1]
    foreign.write_bytes(half)
    assert Record.load(import_journal(foreign, runs)).status == "killed"
    foreign.write_bytes(content)
    assert Record.load(import_journal(foreign, runs)).status == "finished"
    foreign.write_bytes(half)
    assert Record.load(import_journal(foreign, runs)).status == "finished"


def test_two_journals_of_one_run_id_are_not_mixed(runs: Path, tmp_path: Path) -> None:
    journals.complete(runs, "twice")
    with pytest.raises(JournalError, match="different journals of one run id"):
        import_journal(journals.complete(tmp_path / "runs", "twice", name="other"), runs)


@pytest.mark.parametrize("run_id", ["../../escaped", "/etc/x", "", ".hidden", ["list"]])
def test_a_foreign_run_id_cannot_leave_the_runs(runs: Path, tmp_path: Path, run_id: object) -> None:
    journal = journals.begin(tmp_path / "runs", "tame")
    journal.set(run_id=run_id)
    journal.close()
    with pytest.raises(JournalError, match=r"cannot be a folder's name|names a run"):
        import_journal(journal.path, runs)
    assert not runs.exists()

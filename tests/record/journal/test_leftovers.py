"""What a process that was killed at any moment left in a run's folder is removed, and nothing else."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import journals
import pytest
from command_lines import ROOT, script

from dpexp.record.journal.durable import remove_temporary, write_atomically
from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.journal.journal import JOURNAL, RECORD, RESERVE, Journal
from dpexp.record.journal.leftovers import remove_leftovers
from dpexp.record.runs.clean_files import NOTE

KILLED = """
import os, signal, sys
from pathlib import Path
from dpexp.record.journal.fold import finish
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
finish(Path(sys.argv[1]))
"""


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def folder(runs: Path) -> Path:
    """A finished run, in the middle of whose fold a process was killed."""
    journal = journals.complete(runs, "killed")
    ended = subprocess.run([sys.executable, "-c", KILLED, journal], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(names(journal.parent)) == 2
    return journal.parent


@pytest.mark.parametrize("words", [("reap",), ("check", "--repair"), ("sync", "killed")], ids=lambda w: w[0])
def test_nothing_stays_of_a_process_that_was_killed_in_the_middle_of_the_fold(
    folder: Path, words: tuple[str, ...]
) -> None:
    script("runs.py", *words, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert names(folder) - {NOTE} == {JOURNAL, RECORD}


@pytest.mark.parametrize("words", [("list",), ("show", "killed")], ids=lambda w: w[0])
def test_whoever_reads_a_run_removes_what_a_killed_fold_left(folder: Path, words: tuple[str, ...]) -> None:
    script("runs.py", *words)
    assert names(folder) == {JOURNAL}


def test_those_of_earlier_versions_are_removed_unless_a_process_may_be_writing_them(folder: Path) -> None:
    load(folder)
    ended = subprocess.Popen(["true"])
    ended.wait()
    old, dead, alive = (f".{RECORD}.{pid}" for pid in (ended.pid, 2**22 + 1, os.getpid()))
    for name in (old, dead, alive):
        (folder / name).write_text("{")
    for name in (old, alive):
        os.utime(folder / name, (0, 0))
    remove_leftovers(folder)
    assert names(folder) == {JOURNAL, dead, alive}, "one of a minute ago may be that of a process elsewhere"


def test_reap_removes_reserved_files(dpexp_home: Path, runs: Path) -> None:
    ended = journals.complete(runs, "ended").parent
    finish(ended / JOURNAL)
    running = journals.begin(runs, "running")
    for reserve in (ended / RESERVE, running.folder / RESERVE):
        reserve.write_bytes(b"0")
    script("runs.py", "reap", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert names(ended) == {JOURNAL, RECORD}
    assert names(running.folder) == {JOURNAL, RESERVE}
    running.close()


def test_a_resumed_run_has_room_on_a_full_disk(runs: Path) -> None:
    folder = journals.complete(runs, "resumed").parent
    with Journal.reopen(folder):
        assert (folder / RESERVE).stat().st_size > 10_000
    assert not (folder / RESERVE).exists()


def test_the_file_of_a_writer_that_is_alive_is_not_removed(tmp_path: Path) -> None:
    """Two threads of removals meet 300 writes."""
    folder, has_ended = tmp_path / "folder", threading.Event()
    folder.mkdir()
    path = folder / RECORD

    def remove() -> None:
        while not has_ended.is_set():
            remove_temporary(folder, [each.name for each in folder.iterdir()])

    threads = [threading.Thread(target=remove) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        write_atomically(path, b"%d" % number)
        assert path.read_bytes() == b"%d" % number
    has_ended.set()
    for thread in threads:
        thread.join()
    assert names(folder) == {RECORD}


def test_no_link_is_followed(runs: Path, tmp_path: Path) -> None:
    folder = journals.complete(runs, "linked").parent
    finish(folder / JOURNAL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (folder / f".{RECORD}.0123456789abcdef.tmp").symlink_to(elsewhere)
    remove_leftovers(folder)
    finish(folder / JOURNAL)
    assert elsewhere.read_text() == "mine"
    assert fold(folder / JOURNAL).status == "finished"

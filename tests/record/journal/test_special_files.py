"""Pipes, devices and links where dpexp has files: damage by name, never read and never waited for."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import journals
import pytest
from command_lines import script

from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.journal.journal import JOURNAL, RECORD, Journal
from dpexp.record.journal.seal import checksum
from dpexp.record.record import JournalError
from dpexp.record.runs.check import record_problems, repair_record
from dpexp.record.runs.import_journals import import_journal
from dpexp.record.runs.import_journals import journals as found_at
from dpexp.record.runs.index import delete_run, read_summary
from dpexp.record.runs.origin import is_ours, sign
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.check import ledger_problems
from dpexp.tracking.delivery.ledger import LedgerEntry

KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "folder": Path.mkdir,
}
COMMANDS = (("list",), ("check",), ("check", "--repair"), ("sync",), ("reap",))


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Nothing here waits: what reads a pipe would, for ever."""
    signal.alarm(600)
    yield
    signal.alarm(0)


@pytest.fixture(params=KINDS)
def special(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something in place of a file, which is then found as «elsewhere»."""

    def replace(path: Path) -> None:
        path.rename(path.with_name("elsewhere"))
        KINDS[request.param](path)

    return replace


@pytest.fixture
def folder(runs: Path) -> Path:
    """A run that has ended and was delivered."""
    journal = journals.complete(runs, "run")
    finish(journal)
    now = checksum(journal)
    ledger.write_entry(journal.parent, "there", LedgerEntry("1", "2", True, now["bytes"], now["crc"]))
    return journal.parent


def test_a_journal_that_is_no_file_is_named(folder: Path, special: Callable[[Path], None]) -> None:
    special(folder / JOURNAL)
    assert [problem.kind for problem in record_problems(folder)] == ["journal"]
    with pytest.raises(JournalError):
        fold(folder / JOURNAL)
    with pytest.raises(JournalError):
        Journal.reopen(folder)
    read_summary(folder)
    assert ledger_problems(folder) == []
    delete_run(folder)
    assert not folder.exists()


def test_a_record_that_is_no_file_is_written_again(folder: Path, special: Callable[[Path], None]) -> None:
    right = (folder / RECORD).read_bytes()
    special(folder / RECORD)
    (found,) = record_problems(folder)
    assert found.what.startswith(f"{RECORD}: ")
    assert load(folder) == fold(folder / JOURNAL)
    if (folder / RECORD).is_dir():
        return  # nothing replaces a folder
    repair_record(folder, [found])
    assert (folder / RECORD).read_bytes() == right
    assert (folder / "elsewhere").read_bytes() == right, "no link was followed"
    assert record_problems(folder) == []


def test_a_ledger_that_is_no_file_is_named(folder: Path, special: Callable[[Path], None]) -> None:
    special(folder / ledger.LEDGER)
    assert ledger.read_ledger(folder) == {}
    (found,) = ledger_problems(folder)
    assert found.what.startswith(f"{ledger.LEDGER}: ")


def test_a_key_that_is_no_file_signs_nothing(
    dpexp_home: Path, folder: Path, special: Callable[[Path], None]
) -> None:
    record = load(folder)
    record.origin = sign(dpexp_home, record.run_id, record.config)
    assert is_ours(dpexp_home, record)
    (key,) = dpexp_home.glob(".origin-key-*")
    special(key)
    assert sign(dpexp_home, record.run_id, record.config) == ""
    assert not is_ours(dpexp_home, record)


def test_no_command_waits_for_a_pipe(runs: Path) -> None:
    for name in (JOURNAL, RECORD, ledger.LEDGER, "system.jsonl", "uploader.log"):
        folder = journals.complete(runs, f"with-{name.split('.')[0]}").parent
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    for words in COMMANDS:
        done = script("runs.py", *words, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, 3)


def test_a_link_that_a_user_gives_to_sync_is_followed(runs: Path, tmp_path: Path) -> None:
    journal = journals.complete(tmp_path / "usb", "abroad")
    link = tmp_path / "linked.jsonl"
    link.symlink_to(journal)
    (found,) = found_at(link)
    assert fold(import_journal(found, runs) / JOURNAL).run_id == "abroad"

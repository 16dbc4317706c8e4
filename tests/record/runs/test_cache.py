"""What is kept of unchanged runs never differs from what their files say now."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import journals
import pytest

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL, RECORD, Journal
from dpexp.record.journal.seal import checksum, seal
from dpexp.record.record import JournalError, Record
from dpexp.record.runs import cache, origin
from dpexp.record.runs.index import folders, read_summary, summaries
from dpexp.record.runs.run_summary import RunSummary
from dpexp.record.runs.stored_record import RecordReader, StoredRecord
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LEDGER, Ledger, LedgerEntry

KINDS = ("summaries", "ledgers", "records")
TICK_NS = 20_000_000
"""More than the steps in which the clock of a local file system goes on."""


@pytest.fixture(autouse=True)
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is settled as soon as the clock of the file system has gone on."""
    monkeypatch.setattr(cache, "SETTLED_NS", TICK_NS)


def settle(home: Path) -> None:
    """Wait until all files of a home are settled."""
    latest, clock = max(path.lstat().st_ctime_ns for path in home.rglob("*")), home.parent / "clock"
    clock.touch()
    while clock.stat().st_mtime_ns <= latest + TICK_NS:
        clock.touch()


def as_read(runs: Path) -> list[RunSummary]:
    """The summaries of all runs, without a cache."""
    found = map(read_summary, folders(runs))
    return sorted(found, key=lambda run: (run.started, run.run_id), reverse=True)


def ended(runs: Path, run_id: str, **facts: object) -> Path:
    """A run that has ended and is delivered."""
    journal = journals.begin(runs, run_id, **facts)
    journals.step(journal, 0, 3)
    journal.set(status="finished", ended="2026-01-01T00:00:00+00:00")
    journal.close()
    finish(journal.path)
    deliver(journal.folder)
    return journal.folder


def deliver(folder: Path) -> None:
    now = checksum(folder / JOURNAL)
    ledger.write_entry(folder, "there", LedgerEntry("1", "2", True, now["bytes"], now["crc"]))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose files are read from now on."""
    found: list[str] = []
    stored, read = RecordReader.stored, Ledger.read

    def counted(self: RecordReader, folder: Path, *, by_length: bool = False) -> object:
        found.append(folder.name)
        return stored(self, folder, by_length=by_length)

    def counted_ledger(folder: Path) -> Ledger:
        found.append(folder.name)
        return read(folder)

    monkeypatch.setattr(RecordReader, "stored", counted)
    monkeypatch.setattr(Ledger, "read", counted_ledger)
    return found


def records(reader: RecordReader, runs: Path) -> dict[Path, Record | str]:
    """The Records of all runs, or why there is none."""
    found: dict[Path, Record | str] = {}
    with reader:
        for folder in folders(runs):
            try:
                found[folder] = reader.read(folder)
            except JournalError as error:
                found[folder] = str(error)
    return found


def everything(home: Path) -> None:
    """Look at all runs as ``list``, ``sync`` and ``report`` do."""
    runs = home / "runs"
    summaries(runs)
    ledger.ledgers(home, folders(runs))
    records(RecordReader(runs), runs)


def test_runs_that_have_not_changed_are_not_read_again(runs: Path, reads: list[str]) -> None:
    origin.sign(runs.parent, "", {})
    for run_id in ("one", "two"):
        ended(runs, run_id)
    settle(runs.parent)
    everything(runs.parent)
    assert sorted(reads) == ["one"] * 3 + ["two"] * 3
    deliver(runs / "two")
    reads.clear()
    everything(runs.parent)
    assert reads == ["two"] * 3
    settle(runs.parent)
    for _ in range(2):
        everything(runs.parent)
    assert reads == ["two"] * 6


def test_a_file_that_has_just_changed_is_read_again(
    runs: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 10**18)
    ended(runs, "one")
    for _ in range(2):
        everything(runs.parent)
    assert reads == ["one"] * 6


def test_a_record_that_is_kept_is_the_one_of_its_file(runs: Path) -> None:
    folder = ended(runs, "one")
    settle(runs.parent)
    read, kept = (records(RecordReader(runs), runs)[folder] for _ in range(2))
    assert isinstance(read, Record)
    assert isinstance(kept, StoredRecord)
    assert ("steps" in vars(read), "steps" in vars(kept)) == (True, False)
    assert kept.to_dict() == read.to_dict() == load(folder).to_dict()
    with pytest.raises(AttributeError, match="nothing"):
        kept.nothing  # noqa: B018


# --- whatever happens to a home -------------------------------------------------------------------


class Changes:
    """What may happen to a home between two looks at it, drawn at random."""

    def __init__(self, runs: Path, rng: random.Random) -> None:
        self.runs, self.rng, self.number = runs, rng, 0
        self.open: list[Journal] = []

    def every(self) -> list[Callable[[], object]]:
        return [getattr(self, name) for name in vars(type(self)) if name.startswith("do_")]

    def some(self, name: str = RECORD) -> Path:
        """A file of a run that has ended and is whole."""
        whole = (RECORD, JOURNAL, LEDGER)
        found = [folder for folder in folders(self.runs) if all((folder / each).is_file() for each in whole)]
        return (self.rng.choice(found) if found else self.do_end()) / name

    def do_end(self) -> Path:
        self.number += 1
        return ended(self.runs, f"run{self.number}", name=f"name {self.rng.random()}")

    def do_begin(self) -> None:
        self.number += 1
        self.open.append(journals.begin(self.runs, f"run{self.number}"))

    def do_resume(self) -> None:
        journal = Journal.reopen(self.some().parent)
        journal.set(status="running", ended=None)
        journal.flush()
        self.open.append(journal)

    def do_step(self) -> None:
        for journal in self.open:
            journals.step(journal, self.number, 1)

    def do_close(self) -> None:
        while self.open:
            self.open.pop().close()

    def do_rewrite_with_same_size(self) -> None:
        """The name is another, size and time of the last change are the same."""
        path = self.some()
        before, content = path.stat(), path.read_bytes()
        text = content.rpartition(b',\n "made_from"')[0].decode()
        text = text.replace('"name": "name', f'"name": "{self.rng.choice(["nome", "nume"])}') + "\n}\n"
        path.write_bytes(seal(text, checksum(path.with_name(JOURNAL))))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def do_damage(self) -> None:
        path = self.some(self.rng.choice([RECORD, JOURNAL, LEDGER]))
        content = bytearray(path.read_bytes())
        content[self.rng.randrange(len(content))] ^= 1
        path.write_bytes(content)

    def do_replace_folder(self) -> None:
        folder = self.some().parent
        other = ended(self.runs, "other", name="it was replaced")
        shutil.rmtree(folder)
        other.rename(folder)

    def do_copy_home(self) -> None:
        home = self.runs.parent
        copied = home.with_name(f"copy of {home.name}")
        self.do_close()
        subprocess.run(["cp", "-a", home, copied], check=True)
        shutil.rmtree(home)
        copied.rename(home)

    def do_remove(self) -> None:
        self.some(self.rng.choice([RECORD, JOURNAL, LEDGER])).unlink()

    def do_remove_run(self) -> None:
        shutil.rmtree(self.some().parent)

    def do_pipe(self) -> None:
        path = self.some(self.rng.choice([RECORD, LEDGER]))
        path.unlink()
        os.mkfifo(path)

    def do_link(self) -> None:
        path = self.some()
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")

    def do_deliver(self) -> None:
        deliver(self.some().parent)

    def do_leave_temporary(self) -> None:
        (self.some().parent / f".{RECORD}.{0:016x}.tmp").touch()

    def do_damage_cache(self) -> None:
        for path in self.runs.parent.glob(".cache-*"):
            content = bytearray(path.read_bytes())
            content[self.rng.randrange(len(content))] ^= 1
            path.write_bytes(content)

    def do_exchange_caches(self) -> None:
        one, other = (self.runs.parent / f".cache-{kind}-{os.getuid()}" for kind in self.rng.sample(KINDS, 2))
        if one.exists() and other.exists():
            one.rename(one.with_name("kept"))
            other.rename(one)
            one.with_name("kept").rename(other)

    def do_make_another_key(self) -> None:
        for path in self.runs.parent.glob(".origin-key-*"):
            path.unlink()
            origin.sign(self.runs.parent, "", {})

    def do_read_only(self) -> None:
        """The caches cannot be written."""
        for path in self.runs.parent.glob(".cache-*"):
            path.unlink()
            path.mkdir()


@pytest.fixture(params=range(3))
def changes(request: pytest.FixtureRequest, runs: Path) -> Iterator[Changes]:
    drawn = Changes(runs, random.Random(request.param))
    origin.sign(runs.parent, "", {})
    for _ in range(4):
        drawn.do_end()
    yield drawn
    drawn.do_close()


def test_a_list_from_the_cache_equals_one_without(changes: Changes) -> None:
    home, runs = changes.runs.parent, changes.runs
    todo = changes.every() * 2
    changes.rng.shuffle(todo)
    for change in todo:
        settle(home)
        everything(home)
        change()
        for _ in range(2):
            assert summaries(runs) == as_read(runs), change
            found = ledger.ledgers(home, folders(runs))
            assert found == {folder: Ledger.read(folder) for folder in folders(runs)}, change
            assert records(RecordReader(runs), runs) == records(RecordReader(), runs), change
            assert not list(runs.glob("*/.*.tmp")), change
        for path in home.glob(".cache-*"):
            if path.is_dir():
                path.rmdir()

"""``check`` finds what is wrong with a run's files, and ``--repair`` mends what derives from the journal."""

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import journals
import pytest
from command_lines import script

from dpexp.record.journal.fold import finish, fold, load, load_closed
from dpexp.record.journal.journal import JOURNAL, RECORD, Journal
from dpexp.record.journal.seal import checksum, seal, warn_of
from dpexp.record.record import JournalError
from dpexp.record.runs.check import record_problems, repair_record
from dpexp.record.runs.import_journals import import_journal
from dpexp.record.runs.index import UnknownRunError, find, read_summary
from dpexp.record.runs.run_summary import RunSummary
from dpexp.record.runs.stored_record import RecordReader


@pytest.fixture
def folder(dpexp_home: Path) -> Path:
    """A run that has ended, without a fault."""
    path = journals.complete(dpexp_home / "runs", "checked")
    finish(path)
    return path.parent


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << (place % 7)
    path.write_bytes(content)


def kinds(folder: Path) -> list[str]:
    return sorted({problem.kind for problem in record_problems(folder)})


def test_a_run_without_fault_has_no_problem(folder: Path) -> None:
    assert record_problems(folder) == []


def test_every_flipped_byte_of_a_derived_file_is_found_and_repaired(folder: Path) -> None:
    path, record = folder / RECORD, fold(folder / JOURNAL)
    whole = path.read_bytes()
    places = random.Random(13).sample(range(len(whole)), 60)
    for place in places:
        flipped(path, place)
        assert kinds(folder) == ["record"], place
        assert load(folder) == record
        assert read_summary(folder) == RunSummary.of(record)
        path.write_bytes(whole)
    flipped(path, places[0])
    repair_record(folder, record_problems(folder))
    assert path.read_bytes() == whole


def test_every_flipped_byte_of_a_journal_is_found(folder: Path) -> None:
    path = folder / JOURNAL
    whole = path.read_bytes()
    for place in random.Random(13).sample(range(len(whole)), 60):
        flipped(path, place)
        assert "journal" in kinds(folder), place
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines[:3] + lines[4:], lambda lines: lines * 2, lambda lines: []],
    ids=["line lost", "file twice", "empty"],
)
def test_a_journal_that_changed_after_its_end_is_found(
    folder: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(change(lines)))
    assert "journal" in kinds(folder)


def test_repair_keeps_the_record_that_was_made_before_the_journal_was_damaged(folder: Path) -> None:
    before = (folder / RECORD).read_bytes()
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(lines[:3] + lines[4:]))
    repair_record(folder, record_problems(folder))
    assert kinds(folder) == ["journal"]
    assert (folder / "record.before-damage.json").read_bytes() == before


@pytest.mark.parametrize("lines_left", range(1, 4))
def test_a_journal_that_lost_its_end_keeps_the_record_and_says_so(folder: Path, lines_left: int) -> None:
    before, journal = (folder / RECORD).read_bytes(), folder / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:lines_left]))
    left = f"{journal.stat().st_size} of {len(whole)} bytes are left"
    lost = f"the journal has lost its end or other lines: {left}"
    assert lost in load(folder).damage
    for _ in range(2):  # the second time nothing but the kept Record knows
        repair_record(folder, record_problems(folder))
        finish(journal)
        assert kinds(folder) == ["journal"]
        assert (folder / "record.before-damage.json").read_bytes() == before
        assert lost in load_closed(folder).damage
        assert read_summary(folder).damage > 0
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[: lines_left - 1]))
    with contextlib.suppress(JournalError):
        finish(journal)
    assert (folder / "record.before-damage.json").read_bytes() == before
    journal.write_bytes(whole)
    repair_record(folder, record_problems(folder))
    assert (folder / RECORD).read_bytes() == before


def test_a_run_resumed_without_the_end_of_its_journal_keeps_the_record(folder: Path) -> None:
    before, lines = (folder / RECORD).read_bytes(), (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(lines[:2]))
    Journal.reopen(folder).close()
    assert (folder / "record.before-damage.json").read_bytes() == before


def test_a_resumed_run_whose_last_line_was_torn_has_lost_nothing(folder: Path) -> None:
    journal = folder / JOURNAL
    journal.write_bytes(journal.read_bytes() + b"{" * 5000)
    (folder / RECORD).unlink()
    finish(journal)
    Journal.reopen(folder).close()
    assert finish(journal).damage == []


def test_a_byte_that_flips_after_the_end_is_noticed_by_every_reader_but_lists(folder: Path) -> None:
    journal = folder / JOURNAL
    flipped(journal, journal.read_bytes().index(b"steps.time_ms"))
    assert load(folder).damage
    assert RecordReader().read(folder) == load(folder)
    assert load_closed(folder).damage == load(folder).damage == fold(journal).damage
    assert read_summary(folder).damage > 0
    assert (folder / "record.before-damage.json").exists()


def without_seal(content: bytes) -> bytes:
    """A Record as the first versions of dpexp wrote it."""
    data = json.loads(content)
    return json.dumps({key: value for key, value in data.items() if key not in ("made_from", "crc")}).encode()


@pytest.mark.parametrize("what", ["empty", "no object", "older", "first version", "of another run"])
def test_a_record_is_believed_only_with_the_seal_of_its_journal(folder: Path, what: str) -> None:
    path, expected = folder / RECORD, fold(folder / JOURNAL)
    whole = path.read_bytes()
    other = journals.complete(folder.parent, "other", steps=200)
    finish(other)
    older = json.dumps({**json.loads(without_seal(whole)), "status": "running"})
    contents = {
        "empty": b"{}\n",
        "no object": b"[]",
        "older": older.encode(),
        "first version": without_seal(whole),
        "of another run": other.with_name(RECORD).read_bytes(),
    }
    path.write_bytes(contents[what])
    assert [problem.kind for problem in record_problems(folder)] == ["record"]
    assert load(folder) == expected
    assert read_summary(folder) == RunSummary.of(expected)
    repair_record(folder, record_problems(folder))
    assert path.read_bytes() == whole
    assert not (folder / "record.before-damage.json").exists()


def test_the_kept_record_of_another_run_is_no_damage_of_this_one(folder: Path) -> None:
    other = journals.complete(folder.parent, "other", steps=200)
    finish(other)
    (folder / "record.before-damage.json").write_bytes(other.with_name(RECORD).read_bytes())
    assert record_problems(folder) == []


def test_a_record_without_a_seal_is_kept_when_its_journal_is_damaged(folder: Path) -> None:
    before = without_seal((folder / RECORD).read_bytes())
    (folder / RECORD).write_bytes(before)
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(lines[:3] + lines[4:]))
    for _ in range(2):
        finish(folder / JOURNAL)
        assert (folder / "record.before-damage.json").read_bytes() == before


def test_an_empty_first_line_is_named_and_the_rest_is_read(folder: Path) -> None:
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join([b"{}\n", *lines[1:]]))
    assert "line 1: its checksum differs, the line is lost" in [p.what for p in record_problems(folder)]
    assert load(folder).run_id == "checked"


def test_a_damaged_record_does_not_break_show_which_says_so(folder: Path) -> None:
    flipped(folder / RECORD, 700)
    shown = script("runs.py", "show", "checked")
    assert shown.returncode == 0
    assert shown.stderr.startswith(f"warning: {folder / RECORD}: ")
    assert "the journal is read instead" in shown.stderr


@pytest.mark.parametrize(
    ("is_checkout", "runs_command"), [(True, "python scripts/runs.py"), (False, "dpexp runs")]
)
def test_messages_name_the_commands_of_this_installation(
    dpexp_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_checkout: bool,
    runs_command: str,
) -> None:
    monkeypatch.setattr("dpexp.config.process.is_checkout", lambda: is_checkout)
    runs = dpexp_home / "runs"
    (runs / "again").mkdir(parents=True)
    with pytest.raises(UnknownRunError, match=f", which {runs_command} list shows"):
        find(runs, "nothing")
    journal = journals.complete(tmp_path / "elsewhere", "again")
    with pytest.raises(JournalError, match=f": {runs_command} remove again removes it"):
        import_journal(journal, runs)
    warn_of(tmp_path / RECORD, "its checksum differs")
    assert f", {runs_command} check --repair writes the file again" in caplog.text


def test_a_killed_run_is_well_as_an_earlier_version_has_recorded_it(runs: Path) -> None:
    """Then its error was null."""
    journal = journals.begin(runs)
    journals.step(journal, 0, 10)
    journal.close()
    record = finish(journal.path)
    assert record.error is not None
    assert (record.status, record.error["type"]) == ("killed", "LostContact")
    record.error = None
    journal.path.with_name(RECORD).write_bytes(seal(record.to_json(), checksum(journal.path)))
    assert record_problems(journal.folder) == []

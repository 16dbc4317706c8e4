"""Sweep records: the Records that a sweep's folder has of its runs, by name, and what each is made from.

::

    runs/<sweep>/records/single.r1.json    from   runs/<run>/journal.jsonl             a run of dpexp
                         other.r1.json            runs/<sweep>/programs/other.r1.jsonl  what a program printed
                         sweep.json               runs/<sweep>/journal.jsonl           the sweep itself

Each has a seal with the sweep's id, its name and its run's id. One without, as earlier versions wrote, that
has changed, or that is another's, is not believed: it is written again from the journal.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dpexp.record import clock, json_text
from dpexp.record.journal.durable import make_folder, read_file, write_atomically
from dpexp.record.journal.fold import fold, load
from dpexp.record.journal.journal import JOURNAL, RUN_ID, encode_line, is_open
from dpexp.record.journal.seal import CRC, MADE_FROM, changed, checksum, made_from, seal, unseal
from dpexp.record.record import JournalError, Record, Row
from dpexp.record.runs.index import folders
from dpexp.record.runs.stored_record import RecordReader

RECORDS, OF_SWEEP, PROGRAMS = "records", "sweep", "programs"
_SWEEP, _NAME, _RUN = "sweep", "name", "run"
"""The keys of the seal, beside those of the journal."""


def write_record(sweep: Path, name: str, journal: Path) -> Record:
    """Write what a journal folds to into the sweep's folder; returns it. Raises JournalError and OSError."""
    record = fold(journal)
    source = {_SWEEP: sweep.name, _NAME: name, _RUN: record.run_id, **checksum(journal)}
    make_folder(sweep / RECORDS, exist_ok=True)
    write_atomically(_path(sweep, name), seal(record.to_json(), source))
    return record


def write_program(sweep: Path, name: str, record: Record) -> Record:
    """Keep the Record that a program has printed: a journal of one line, and what it folds to."""
    make_folder(sweep / PROGRAMS, exist_ok=True)
    line = encode_line({"seq": 0, "at": clock.now_ms(), "set": record.to_dict()})
    write_atomically(_program(sweep, name), line)
    return write_record(sweep, name, _program(sweep, name))


def wrong_records(sweep: Path) -> dict[str, str]:
    """{name: what is wrong with its file}, of the files in the sweep's folder."""
    paths = sorted((sweep / RECORDS).glob("*.json"))
    return {path.stem: text for path in paths if (text := _wrong(sweep, path.stem))}


def _wrong(sweep: Path, name: str) -> str:
    """What is wrong with a file; empty for one that a journal gave which has not changed since."""
    try:
        content = read_file(_path(sweep, name))
        source = made_from(content) or unseal(content)[1]
        run_id = str(source.get(_RUN, ""))
        if (source.get(_SWEEP), source.get(_NAME)) != (sweep.name, name) or not RUN_ID.fullmatch(run_id):
            return f"it is '{source.get(_NAME)}' of sweep {source.get(_SWEEP)}"
        return changed(source, _journal(sweep, name, run_id))
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)


def is_of_earlier_run(folder: Path, record: Record) -> bool:
    """Whether the sweep has the Record of an earlier run of this run's name, which did not finish.

    False for a run that belongs to no sweep, and while the sweep goes on.
    """
    if not RUN_ID.fullmatch(record.parent) or record.parent == folder.name:
        return False
    sweep = folder.with_name(record.parent)
    try:
        source = made_from(read_file(_path(sweep, record.name))) or {}
        other = source.get(_RUN, record.run_id)
        if other == record.run_id or is_open(sweep / JOURNAL) or _wrong(sweep, record.name):
            return False
        return _rank(load(folder.with_name(other))) < _rank(record)
    except (OSError, JournalError):
        return False


def _rank(record: Record) -> tuple[bool, str]:
    """Of several runs of one name the sweep has the one that finished, else the last."""
    return record.status == "finished", record.started


def mend(sweep: Path, names: Iterable[str]) -> set[str]:
    """Write the Records of these names again, of which there is a journal; returns the other names."""
    wanted = set(names)
    for name, journal in _journals(sweep) if wanted else ():
        if name in wanted:
            with suppress(JournalError):  # it is damaged as well, which `check` reports
                write_record(sweep, name, journal)
                wanted.remove(name)
    return {name for name in wanted if not _seal_earlier(sweep, name)}


def set_aside(sweep: Path, names: Iterable[str]) -> None:
    """Rename files that are not believed and cannot be written again, so that none reads them."""
    for name in names:
        with suppress(FileNotFoundError):
            os.replace(_path(sweep, name), _path(sweep, name).with_suffix(".json.damaged"))


def _journals(sweep: Path) -> Iterator[tuple[str, Path]]:
    """The journal of each name: of several runs, by ``_rank``."""
    yield OF_SWEEP, sweep / JOURNAL
    programs = {path.stem: path for path in (sweep / PROGRAMS).glob("*.jsonl")}
    yield from programs.items()
    reader, found = RecordReader(), dict[str, tuple[tuple[bool, str], Path]]()
    for folder in folders(sweep.parent):
        with suppress(JournalError, OSError):  # of another run, which `runs.py list` names
            record = reader.stored(folder, by_length=True) or load(folder)
            if record.parent == sweep.name and not is_open(folder / JOURNAL):
                ranked = (_rank(record), folder / JOURNAL)
                found[record.name] = max(ranked, found.get(record.name, ranked))
    yield from ((name, journal) for name, (_, journal) in found.items() if name not in programs)


def _seal_earlier(sweep: Path, name: str) -> bool:
    """Keep a program's Record that an earlier version wrote without a seal: there is no other source."""
    try:
        data: Row = json_text.loads(read_file(_path(sweep, name)))
        record = Record.from_dict(data)
    except (OSError, ValueError, TypeError, AttributeError, JournalError):
        return False
    is_sealed = bool({MADE_FROM, CRC} & data.keys())
    if is_sealed or record.parent != sweep.name or not RUN_ID.fullmatch(record.run_id):
        return False
    if (sweep.with_name(record.run_id) / JOURNAL).exists():
        return False
    write_program(sweep, name, record)
    return True


def _path(sweep: Path, name: str) -> Path:
    return sweep / RECORDS / f"{name}.json"


def _program(sweep: Path, name: str) -> Path:
    return sweep / PROGRAMS / f"{name}.jsonl"


def _journal(sweep: Path, name: str, run_id: str) -> Path:
    """The journal that a file was made from, which may have been removed."""
    program = _program(sweep, name)
    return program if program.exists() else sweep.with_name(run_id) / JOURNAL

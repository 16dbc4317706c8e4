"""Runs: the folder of all runs: begin one, list them, find one by name, import those of other machines.

Arguments of the command line are only compared with existing names; none becomes part of a path.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.config.errors import ConfigError, describe
from dpexp.config.process import command
from dpexp.record.figures import At, figures
from dpexp.record.files import PROFILER_TRACE, JournalError, make_folder, private_files, write_atomically
from dpexp.record.journal import JOURNAL, RECORD, RUN_ID, Journal, is_open, new_run_id
from dpexp.record.record import Record, Row, finish, fold
from dpexp.record.steps import present
from dpexp.record.view import RecordView

PARENT = "DPEXP_PARENT"
"""The environment variable with the run id of the sweep that a run belongs to."""


def begin(home: Path, run_id: str, facts: Row, *, restarted: bool) -> Journal:
    """The journal with these facts: a new one, under a new id where it has none, or that of restarted ranks.

    Raises JournalError where it cannot be written: then a new run leaves nothing.
    """
    runs = home / "runs"
    continues = restarted and (runs / run_id).exists()
    if continues:
        journal = Journal.reopen(runs / run_id)
        kept = ("schema", "run_id", "started", "parent", "steps")
        journal.set({key: value for key, value in (Record().to_dict() | facts).items() if key not in kept})
    else:
        journal = Journal(runs, run_id or new_run_id())
        journal.set(facts, parent=os.environ.get(PARENT, ""))
    try:
        journal.flush()
    except JournalError:
        if not continues:
            journal.abandon()
        raise
    return journal


_SAME = ("run_id", "name", "experiment", "strategy", "execution", "status", "started", "ended")


@dataclass(frozen=True)
class RunSummary:
    """What ``runs.py list`` shows of a run. ``verified`` is None if nothing was checked.

    ``figures`` are those of the registry that stand in lists, as a summary has them. ``steps`` counts the
    measured ones, ``damage`` is what is wrong with the journal; ``problem`` says why a run cannot be read at
    all.
    """

    run_id: str
    name: str
    experiment: str
    strategy: str
    execution: str
    devices: list[str]
    verified: bool | None
    status: str
    started: str
    ended: str | None
    figures: Row = field(default_factory=dict)
    damage: int = 0
    steps: int = 0
    problem: str = ""

    @classmethod
    def of(cls, record: Record) -> RunSummary:
        """The summary of a Record."""
        view = RecordView(record)
        return cls(
            **{name: getattr(record, name) for name in _SAME},
            devices=list(record.devices.get("used", [])),
            verified=record.verification.get("passed") if record.verification.get("checked") else None,
            figures={figure.name: figure.summarized(view) for figure in figures(At.LIST)},
            damage=len(record.damage),
            steps=len(present(record.steps["time_ms"])),
        )

    def to_dict(self) -> Row:
        """JSON-ready: the figures stand beside the facts."""
        facts = dataclasses.asdict(self)
        del facts["figures"]
        return facts | self.figures


UNREADABLE = "unreadable"
LAST = "last"


class UnknownRunError(ConfigError):
    """A name of no run, or of several: the message lists similar ones."""


def folders(runs: Path) -> list[Path]:
    """The folders of all runs, by run id; none before the first. Raises JournalError without permission."""
    try:
        with os.scandir(runs) as found:
            paths = sorted(e.path for e in found if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise JournalError(
            f"{runs} cannot be read: {error.strerror}; DPEXP_HOME is the folder of the runs"
        ) from error
    return list(map(Path, paths))


def read_summary(folder: Path) -> RunSummary:
    """The summary of one run. One that cannot be read is ``unreadable``, and ``problem`` says why."""
    try:
        summary = RunSummary.of(Record.load(folder))
    except Exception as error:  # whatever is in the files: other runs are listed
        problem = str(error) if isinstance(error, JournalError) else describe(error)
        summary = dataclasses.replace(RunSummary.of(Record(status=UNREADABLE)), problem=problem)
    return dataclasses.replace(summary, run_id=folder.name)


def summaries(runs: Path) -> list[RunSummary]:
    """The summaries of all runs, the newest first."""
    return sorted(map(read_summary, folders(runs)), key=lambda run: (run.started, run.run_id), reverse=True)


def delete_run(folder: Path) -> None:
    """Delete a run's folder; an interrupted deletion leaves a hidden one, which the next one deletes.

    Raises JournalError.
    """
    hidden = folder.with_name(f".removed-{folder.name}")
    try:
        if (folder / JOURNAL).is_file() and is_open(folder / JOURNAL):
            raise JournalError(f"run {folder.name} is running: end it first; nothing was deleted")
        if hidden.exists():
            shutil.rmtree(hidden)
        folder.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise JournalError(f"run {folder.name} cannot be deleted: {error}") from error


def find(runs: Path, name: str) -> Path:
    """The folder of a run, by its id, a unique prefix of it, its name, or ``last``.

    Of several runs with one name it is the newest. Raises UnknownRunError.
    """
    by_id = {folder.name: folder for folder in folders(runs)}
    if not by_id:
        raise UnknownRunError(f"there is no run in {runs} yet")
    if name in by_id:
        return by_id[name]
    matches = [run_id for run_id in by_id if name and run_id.startswith(name)]
    if len(matches) == 1:
        return by_id[matches[0]]
    known = summaries(runs)
    for run in known:
        if name == LAST or (run.name == name and run.status != UNREADABLE):
            return by_id[run.run_id]
    if matches:
        shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise UnknownRunError(f"'{name}' begins {len(matches)} run ids ({shown}): use a longer prefix")
    close = difflib.get_close_matches(name, [*by_id, *(run.name for run in known)], n=1)
    suggestion = f": did you mean '{close[0]}'?" if close else ""
    raise UnknownRunError(
        f"no run '{name}' among the {len(by_id)} in {runs}, which {command('runs')} list shows{suggestion}"
    )


IMPORTED = "imported"
"""The empty file that marks a run of another machine: ``reproduce`` asks before it runs what that names."""


def journals(path: Path) -> list[Path]:
    """The journals at a path: a journal itself, that of a run's folder, or all in a folder of runs."""
    if not path.is_dir():
        return [path]
    journal = path / JOURNAL
    return [journal] if journal.exists() else sorted(path.glob(f"*/{JOURNAL}"))


def import_journal(journal: Path, runs: Path) -> Path:
    """Copy a journal into the folder of its run id in ``runs``; returns that folder.

    A longer copy of an existing journal replaces it. Raises JournalError for a file that is not a journal,
    and for two different journals of one run id.
    """
    run_id = fold(journal).run_id
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise JournalError(
            f"{journal}: its run id {run_id!r} cannot be a folder's name: dpexp did not write it"
        )
    folder = runs / run_id
    if not folder.exists():
        _copy(journal, folder)
    elif not (folder / JOURNAL).exists():
        raise JournalError(
            f"{folder} has no {JOURNAL}: {command('runs')} remove {run_id} removes it, "
            f"then {journal} can be imported"
        )
    elif not journal.samefile(folder / JOURNAL):
        _merge(journal, folder)
    if not (folder / RECORD).exists() and not is_open(folder / JOURNAL):
        finish(folder / JOURNAL)
    return folder


def _copy(journal: Path, folder: Path) -> None:
    """Copy all of the run's files, or none: the folder appears when it is complete."""
    make_folder(folder.parent, exist_ok=True)
    with tempfile.TemporaryDirectory("", ".import-", folder.parent) as temporary, private_files():
        copied = Path(temporary) / folder.name
        copied.mkdir()
        (copied / IMPORTED).touch()
        shutil.copyfile(journal, copied / JOURNAL)
        _copy_trace(journal, copied)
        try:
            os.rename(copied, folder)
        except OSError:  # another process has imported it in the meantime
            _merge(journal, folder)


def _merge(journal: Path, folder: Path) -> None:
    existing, imported = (folder / JOURNAL).read_bytes(), journal.read_bytes()
    if existing.startswith(imported):
        return
    if not imported.startswith(existing) or is_open(folder / JOURNAL):
        raise JournalError(
            f"{journal} and {folder / JOURNAL} are different journals of one run id: nothing was changed"
        )
    (folder / RECORD).unlink(missing_ok=True)
    write_atomically(folder / JOURNAL, imported)
    _copy_trace(journal, folder)


def _copy_trace(journal: Path, folder: Path) -> None:
    """Copy the profiler's trace, which no journal gives back."""
    if journal.with_name(PROFILER_TRACE).exists():
        shutil.copyfile(journal.with_name(PROFILER_TRACE), folder / PROFILER_TRACE)

"""Runs: the folder of all runs: begin one, list them, find one by name, import those of other machines.

Arguments of the command line are only compared with existing names; none becomes part of a path.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.config.errors import ConfigError, describe
from dpexp.config.process import command
from dpexp.record.figures import At, figures
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE, JournalError, make_folder, write_atomically
from dpexp.record.fold import finish, fold, load_record
from dpexp.record.journal import JOURNAL, RUN_ID, Journal, is_open
from dpexp.record.record import Record, Row
from dpexp.record.steps import present
from dpexp.record.view import RecordView

PARENT = "DPEXP_PARENT"
"""The environment variable with the run id of the sweep that a run belongs to."""
UNREADABLE = "unreadable"
LAST = "last"


class UnknownRunError(ConfigError):
    """A name of no run, or of several: the message lists similar ones."""


def begin(home: Path, run_id: str, facts: Row) -> Journal:
    """A new journal with these facts. Raises JournalError where it cannot be written: no folder is left."""
    journal = Journal(home / "runs", run_id)
    journal.set(facts, parent=os.environ.get(PARENT, ""))
    try:
        journal.flush()
    except JournalError:
        journal.abandon()
        raise
    return journal


@dataclass(frozen=True)
class RunSummary:
    """What ``runs.py list`` shows of a run. ``verified`` is None if nothing was checked.

    ``figures`` are those that lists show, as a summary has them. ``steps`` counts the measured ones,
    ``damage`` what is wrong with the journal; ``problem`` says why a run cannot be read at all.
    """

    run_id: str
    name: str = ""
    experiment: str = ""
    strategy: str = ""
    execution: str = ""
    devices: list[str] = field(default_factory=list)
    verified: bool | None = None
    gaps: list[str] = field(default_factory=list)
    status: str = UNREADABLE
    started: str = ""
    ended: str | None = None
    figures: Row = field(default_factory=dict)
    damage: int = 0
    steps: int = 0
    problem: str = ""

    @classmethod
    def of(cls, record: Record) -> RunSummary:
        """The summary of a Record."""
        view, facts = RecordView(record), record.to_dict()
        same = ("run_id", "name", "experiment", "strategy", "execution", "status", "started", "ended")
        return cls(
            **{name: facts[name] for name in same},
            devices=list(record.devices.get("used", [])),
            verified=record.verification.get("passed") if record.verification.get("checked") else None,
            gaps=record.verification.get("gaps") or [],
            figures={figure.name: figure.summarized(view) for figure in figures(At.LIST)},
            damage=len(record.damage),
            steps=len(present(record.steps["time_ms"])),
        )

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """The summary of a run's folder; of one that cannot be read ``problem`` says why."""
        try:
            return dataclasses.replace(cls.of(load_record(folder)), run_id=folder.name)
        except Exception as error:  # whatever is in the files: other runs are listed
            return cls(
                folder.name, problem=str(error) if isinstance(error, JournalError) else describe(error)
            )

    def to_dict(self) -> Row:
        """JSON-ready: the figures are beside the facts."""
        facts = {name: each for name, each in dataclasses.asdict(self).items() if name != "figures"}
        return facts | self.figures


def folders(runs: Path) -> list[Path]:
    """The folders of all runs, by run id; none before the first. Raises JournalError without permission."""
    try:
        with os.scandir(runs) as found:
            return sorted(Path(each.path) for each in found if each.name[0] != "." and each.is_dir())
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise JournalError(
            f"{runs} cannot be read: {error.strerror}; DPEXP_HOME is the folder of the runs"
        ) from error


def summaries(runs: Path) -> list[RunSummary]:
    """The summaries of all runs, the newest first."""
    found = map(RunSummary.read, folders(runs))
    return sorted(found, key=lambda run: (run.started, run.run_id), reverse=True)


def find(runs: Path, name: str) -> Path:
    """The folder of a run, by its id, a unique prefix of it, its name, or ``last``.

    Of several runs with one name it is the newest. Raises UnknownRunError.
    """
    by_id = {folder.name: folder for folder in folders(runs)}
    if not by_id:
        raise UnknownRunError(f"there is no run in {runs} yet")
    matches = [name] if name in by_id else [run_id for run_id in by_id if name and run_id.startswith(name)]
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


def delete_run(folder: Path) -> None:
    """Delete a run's folder. Raises JournalError if the run is running, or its files cannot be deleted."""
    try:
        if (folder / JOURNAL).is_file() and is_open(folder / JOURNAL):
            raise JournalError(f"run {folder.name} is running: end it first; nothing was deleted")
        shutil.rmtree(folder)
    except OSError as error:
        raise JournalError(f"run {folder.name} cannot be deleted: {error}") from error


def journals(path: Path) -> list[Path]:
    """The journals at a path: a journal itself, that of a run's folder, or all in a folder of runs."""
    if not path.is_dir():
        return [path]
    journal = path / JOURNAL
    return [journal] if journal.exists() else sorted(path.glob(f"*/{JOURNAL}"))


def import_journal(journal: Path, runs: Path) -> Path:
    """Copy a journal, and its trace, into the folder of its run id in ``runs``; returns that folder.

    A longer copy of an existing journal replaces it. Raises JournalError for a file that is not a journal,
    and for two different journals of one run id.
    """
    run_id = fold(journal).run_id
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise JournalError(
            f"{journal}: its run id {run_id!r} cannot be a folder's name: dpexp did not write it"
        )
    folder, content = runs / run_id, journal.read_bytes()
    ours = folder / JOURNAL
    existing = ours.read_bytes() if ours.exists() else b""
    if existing and existing.startswith(content):
        return folder
    if not content.startswith(existing) or (existing and is_open(ours)):
        raise JournalError(f"{journal} and {ours} are different journals of one run id: nothing was changed")
    make_folder(folder, exist_ok=True)
    for name in (PROFILE_TRACE, PROFILE_TABLE):
        if (path := journal.with_name(name)).exists():
            write_atomically(folder / name, path.read_bytes())
    write_atomically(ours, content)
    finish(ours)
    return folder

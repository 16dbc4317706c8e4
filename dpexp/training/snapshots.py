"""Snapshots: the states of a run on disk, from the newest of which any number of ranks can resume.

snapshots/<run_id>/step-0000000040.pt
"""

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.config.printable import printable
from dpexp.distributed.process_group import ProcessGroup
from dpexp.record.journal.durable import make_folder
from dpexp.record.redact import redact
from dpexp.training.snapshot_file import (
    DamagedError,
    State,
    UnreadableStateError,
    read_snapshot,
    write_snapshot,
)

KEEP = 2
"""Snapshots of a run that stay on disk: a run resumes from the other if the newest is damaged."""
_NAME = re.compile(r"step-(\d{10,18})\.pt")


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one run. Every rank calls every method, in the same order."""

    folder: Path
    group: ProcessGroup
    refused: dict[Path, str] = field(default_factory=dict)
    """Why this process did not resume from a file, of which it has warned."""
    left_out: set[str] = field(default_factory=set)
    """What snapshots do not keep of the optimizers, of which it has warned."""

    def leave_out(self, names: Iterable[str]) -> None:
        """Warn, once, of what snapshots do not keep of the optimizers."""
        new = [name for name in names if name not in self.left_out]
        self.left_out.update(new)
        if new and self.group.is_first:
            _warn(
                f"snapshots do not keep the optimizer's {', '.join(new)}: a run that resumes has what its "
                "constructor makes. Keep it as a tensor, or as lists, sets and dicts of numbers and texts"
            )

    def save(self, step: int, state: State, *, must: bool = True) -> None:
        """Write the state after ``step`` steps; returns when every host has a copy.

        Older ones are given up when it was read again. Raises UnreadableStateError, OSError if it ``must``;
        else a warning is all: the run ends by a signal, and nobody asked for a snapshot.
        """
        if self.group.is_first:
            self._add(step, state, must)
        self.group.barrier()  # on a disk that the hosts share, the other hosts now find the file
        is_other_host = self.group.is_first_on_host and not self.group.is_first
        if is_other_host and not _path(self.folder, step).exists():
            self._add(step, state, must)
        self.group.barrier()

    def _add(self, step: int, state: State, must: bool) -> None:
        try:
            add_snapshot(self.folder, step, state)
        except (UnreadableStateError, OSError) as error:
            if must:
                raise
            _warn(f"no snapshot to resume from: {error}")

    def newest(self, misfit: Callable[[State], str] = lambda state: "") -> State | None:
        """The newest state on any host that can be read and fits, for every rank; None if there is none.

        ``misfit`` says in every rank why a state does not fit, or nothing.
        """
        found = self._readable() if self.group.is_first_on_host else iter(())
        step, state = next(found, NONE)
        while True:
            steps = self.group.all_gather(step)
            newest = max(steps)
            if newest < 0:
                return None
            owner = steps.index(newest)
            shared: State = self.group.broadcast(owner, state if self.group.rank == owner else None)
            reason = next(filter(None, self.group.all_gather(misfit(shared))), "")
            if not reason:
                return shared
            if step == newest:
                path = _path(self.folder, step)
                self._refuse(path, f"snapshot {path} does not fit this run: {reason}")
                step, state = next(found, NONE)

    def remove(self) -> None:
        """Remove the snapshots of a finished run."""
        if self.group.is_first_on_host:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _readable(self) -> Iterator[tuple[int, State | None]]:
        """The steps and states of the snapshots of this host that can be read, the newest first."""
        for step, path in _files(self.folder):
            try:
                state = read_snapshot(path)
            except DamagedError as error:
                self._refuse(path, str(error))
                continue
            yield step, state

    def _refuse(self, path: Path, reason: str) -> None:
        """Tell the user, once, that an older one is taken."""
        if path not in self.refused:
            self.refused[path] = reason
            _warn(f"{reason}; an older one is tried")


def _warn(text: str) -> None:
    print(printable(f"warning: {redact(text)}"), file=sys.stderr, flush=True)


NONE: tuple[int, State | None] = (-1, None)


def add_snapshot(folder: Path, step: int, state: State) -> None:
    """Write a snapshot, and then remove all but it and the newest of those before it."""
    make_folder(folder, exist_ok=True)
    write_snapshot(_path(folder, step), step, state)
    before = [path for found, path in _files(folder) if found < step]
    after = [path for found, path in _files(folder) if found > step]  # the run resumed before them
    for path in (*before[KEEP - 1 :], *after):
        with contextlib.suppress(OSError):  # something else of this name
            path.unlink()


def _files(folder: Path) -> list[tuple[int, Path]]:
    """What has the name of a snapshot, with its step, the newest first."""
    with contextlib.suppress(OSError):
        named = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
        return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)
    return []


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010d}.pt"

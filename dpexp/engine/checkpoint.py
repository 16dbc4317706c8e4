"""Snapshots: the whole state of a run on disk, so that any number of ranks can go on from it.

    snapshots/<run_id>/step-00000040.pt     one line of JSON {step, bytes, sha256}, then the state

A file is written to a temporary name, synced and renamed, and its hash is checked when it is read:
a flipped byte would load in silence. Every host has a copy, by the first of its ranks; the two newest
are kept, so that a damaged one has one before it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dpexp.config import ConfigError
from dpexp.distributed.launch import LAUNCH
from dpexp.distributed.process_group import ProcessGroup
from dpexp.record import write_atomically

KEPT = 2
State = dict[str, Any]


class DamagedError(RuntimeError):
    """A snapshot that is not what was written."""


class Snapshots:
    """The snapshots of one run. Every rank calls every method, in the same order."""

    def __init__(self, folder: Path, group: ProcessGroup) -> None:
        self.folder = folder
        self._group = group

    def save(self, step: int, state: State) -> None:
        """Write the state after ``step`` steps; returns when every host has it. Raises OSError."""
        if self._group.is_first:
            write(self.folder, step, state)
        self._group.barrier()  # on a disk that the hosts share, the others find it there
        if self._group.is_first_on_host and not _path(self.folder, step).exists():
            write(self.folder, step, state)
        self._group.barrier()

    def newest(self) -> State | None:
        """The newest state that some host has undamaged, for every rank; None where there is none."""
        offers = self._group.all_gather(next(iter(undamaged(self.folder)), None))
        steps = [-1 if offer is None else offer for offer in offers]
        if max(steps) < 0:
            return None
        owner = steps.index(max(steps))
        state = read(_path(self.folder, steps[owner])) if self._group.rank == owner else None
        return self._group.broadcast(owner, state)  # type: ignore[no-any-return]

    def forget(self) -> None:
        """The run is finished: nothing goes on from here."""
        if self._group.is_first_on_host:
            for path in self.folder.glob("step-*.pt"):
                path.unlink(missing_ok=True)
            if self.folder.is_dir():
                self.folder.rmdir()


def write(folder: Path, step: int, state: State) -> None:
    """Write one snapshot whole or not at all, and remove those that are older than the one before."""
    held = io.BytesIO()
    torch.save(state, held)
    content = held.getvalue()
    head = {"step": step, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(_path(folder, step), json.dumps(head).encode() + b"\n" + content)
    for old in _paths(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def read(path: Path) -> State:
    """The state of one snapshot. Raises DamagedError where a byte differs from what was written."""
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
        is_whole = head["bytes"] == len(content) and head["sha256"] == hashlib.sha256(content).hexdigest()
    except (ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise DamagedError(f"snapshot {path} is damaged: its hash is not that of its content")
    state: State = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def undamaged(folder: Path) -> Iterator[int]:
    """The steps of the snapshots that can be read, the newest first."""
    for path in _paths(folder):
        try:
            read(path)
        except (DamagedError, OSError):
            continue
        yield int(path.stem.removeprefix("step-"))


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.pt"), reverse=True)


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010d}.pt"


# --- which run -----------------------------------------------------------------------------------

ELSEWHERE = {
    *("devices", "virtual", "threads", "backend", "comm", "comm_timeout", "nnodes", "rdzv_endpoint"),
    *("join_timeout", "max_restarts", "snapshot_every", "resume", "steps", "epochs", "phase_steps", "check"),
    *("track", "track_timeout", "experiment", "run_name"),
}
"""Options that say where and how long a run goes on, not what it computes."""


def own_id() -> str:
    """The run id that this rank proposes: restarted by the same agent, it proposes the same."""
    import psutil

    agent = os.getppid()
    words = [os.uname().nodename, agent, psutil.Process(agent).create_time()]
    words += [os.environ.get(name) for name in (LAUNCH, "TORCHELASTIC_RUN_ID")]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:12]


def agreed_run_id(group: ProcessGroup, home: Path) -> str:
    """The run id of all ranks: the first proposed under which some host already has something."""
    proposed: list[str] = list(dict.fromkeys(group.all_gather(own_id())))
    known = {each for each in proposed if _is_begun(home, each)}
    begun: set[str] = set().union(*group.all_gather(known))
    return next((each for each in proposed if each in begun), proposed[0])


def _is_begun(home: Path, run_id: str) -> bool:
    return (home / "runs" / run_id).exists() or (home / "snapshots" / run_id).exists()


def check_same(then: dict[str, Any], now: dict[str, Any], run_id: str) -> None:
    """Raises ConfigError where a run is to go on with options that compute something else."""
    for name in sorted(set(then) | set(now)):
        if name not in ELSEWHERE and then.get(name) != now.get(name):
            raise ConfigError(
                f"--resume {run_id}: it ran with {name} {then.get(name)!r} and is to go on with "
                f"{now.get(name)!r}: give it the same"
            )

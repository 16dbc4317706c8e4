"""Snapshots: the state of a run on disk, from which any number of ranks can resume.

    snapshots/<run_id>/step-0000000040.pt     one line of JSON {step, bytes, sha256}, then the saved state

``torch.distributed.checkpoint`` is not used: it has no hash (of 198 flipped bits in its file, 114 loaded as
wrong numbers without an error), and it keeps a shard on one host only, so a lost host loses it.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpexp.distributed.process_group import ProcessGroup
from dpexp.record.journal.durable import make_folder, write_atomically

KEEP = 2
"""Snapshots of a run that stay on disk: a run resumes from the other if the newest is damaged."""

State = dict[str, Any]


class DamagedError(RuntimeError):
    """A snapshot whose content is not what was written."""


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one run. Every rank calls every method, in the same order."""

    folder: Path
    group: ProcessGroup

    def save(self, step: int, state: State) -> None:
        """Write the state after ``step`` steps; returns when every host has a copy. Raises OSError."""
        if self.group.is_first:
            write_snapshot(self.folder, step, state)
        self.group.barrier()  # on a disk that the hosts share, the other hosts now find the file
        if self.group.is_first_on_host and not _path(self.folder, step).exists():
            write_snapshot(self.folder, step, state)
        self.group.barrier()

    def newest(self) -> State | None:
        """The newest undamaged state on any host, for every rank; None if there is none."""
        steps = self.group.all_gather(next(undamaged(self.folder), -1))
        newest = max(steps)
        if newest < 0:
            return None
        owner = steps.index(newest)
        state = read_snapshot(_path(self.folder, newest)) if self.group.rank == owner else None
        return self.group.broadcast(owner, state)  # type: ignore[no-any-return]

    def remove(self) -> None:
        """Remove the snapshots of a finished run."""
        if self.group.is_first_on_host:
            shutil.rmtree(self.folder, ignore_errors=True)


def write_snapshot(folder: Path, step: int, state: State) -> None:
    """Write one snapshot atomically, and remove all but the newest ``KEEP``."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    header = {"step": step, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    make_folder(folder, exist_ok=True)
    write_atomically(_path(folder, step), json.dumps(header).encode() + b"\n" + content)
    for old in sorted(folder.glob("step-*.pt"), reverse=True)[KEEP:]:
        old.unlink(missing_ok=True)


def read_snapshot(path: Path) -> State:
    """The state in one snapshot. Raises DamagedError where a byte differs from what was written."""
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(line)
        matches = header["sha256"] == hashlib.sha256(content).hexdigest()
    except (ValueError, KeyError, TypeError):
        matches = False
    if not matches:
        raise DamagedError(f"snapshot {path} is damaged: its hash is not that of its content")
    state: State = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def undamaged(folder: Path) -> Iterator[int]:
    """The steps of the snapshots that can be read, the newest first."""
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            read_snapshot(path)
        except (DamagedError, OSError):
            continue
        yield int(path.stem.removeprefix("step-"))


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010d}.pt"

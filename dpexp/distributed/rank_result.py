"""Outcome: what a rank tells the process that launched it, in a file beside its agent's.

The launcher judges a run by what was written, never by how a rank's teardown went.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpexp.record import write_atomically

VARIABLE = "DPEXP_TOLD"


@dataclass(frozen=True)
class RankResult:
    """A rank's last result. ``folder`` and ``delivery`` come from the first rank, which records."""

    rank: int
    status: str
    kind: str = ""
    message: str = ""
    folder: str = ""
    delivery: dict[str, Any] | None = None


@contextmanager
def results_folder() -> Iterator[Callable[[], list[RankResult]]]:
    """A folder for the ranks' words while inside; call what it gives to read them, by rank."""
    with tempfile.TemporaryDirectory(prefix="dpexp-told-") as folder:
        os.environ[VARIABLE] = folder
        try:
            yield lambda: _read(Path(folder))
        finally:
            del os.environ[VARIABLE]


def _read(folder: Path) -> list[RankResult]:
    words = [RankResult(**json.loads(path.read_bytes())) for path in folder.glob("[0-9]*.json")]
    return sorted(words, key=lambda each: each.rank)


def write_result(result: RankResult) -> None:
    """Called by a rank when it is over. Without a launcher of ours nobody asks."""
    folder = os.environ.get(VARIABLE)
    if folder:
        write_atomically(Path(folder) / f"{result.rank}.json", json.dumps(asdict(result)).encode())


def first_rank_result() -> RankResult | None:
    """What the first rank has told; None while it has not, or where nobody asks."""
    folder = os.environ.get(VARIABLE)
    return next((each for each in _read(Path(folder)) if each.rank == 0), None) if folder else None

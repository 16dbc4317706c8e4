"""Job and RankResult: the files by which a launcher tells its ranks what to do, and they how they ended.

The launcher judges a run by the results, never by the exit codes of the ranks: a teardown may fail.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpexp.record.journal.durable import write_atomically

RESULTS = "DPEXP_RANK_RESULTS"  # in a rank's environment: the folder of these files; without it, no results
JOB = "job.json"


@dataclass(frozen=True)
class Job:
    """What a rank does: the config of the run, and the command line that started it."""

    config: dict[str, Any]
    quiet: bool
    argv: list[str]

    def write(self, folder: Path) -> None:
        """Write the Job for the ranks, which find the folder in their environment."""
        write_atomically(folder / JOB, json.dumps(vars(self)).encode())

    @classmethod
    def read(cls) -> Job:
        """The Job of this rank."""
        return cls(**json.loads(Path(os.environ[RESULTS], JOB).read_bytes()))


@dataclass(frozen=True)
class RankResult:
    """How a rank ended. Only the first rank, which records, has ``folder`` (its run's) and ``delivery``."""

    rank: int
    status: str
    kind: str = ""
    message: str = ""
    folder: str = ""
    delivery: dict[str, Any] | None = None


def read_results(folder: Path) -> list[RankResult]:
    """The results that ranks have written, by rank."""
    results = [RankResult(**json.loads(path.read_bytes())) for path in folder.glob("[0-9]*.json")]
    return sorted(results, key=lambda result: result.rank)


def write_result(result: RankResult) -> None:
    """Write the result of this rank, in place of that before a restart, when it may have had another rank."""
    folder = os.environ.get(RESULTS)
    if folder:
        path = Path(folder) / f"{os.environ['LOCAL_RANK']}.json"
        write_atomically(path, json.dumps(asdict(result)).encode())


def first_rank_result() -> RankResult | None:
    """The result of the first rank; None while there is none."""
    folder = os.environ.get(RESULTS)
    results = read_results(Path(folder)) if folder else []
    return results[0] if results and results[0].rank == 0 else None

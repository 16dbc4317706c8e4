"""Rank results: what a launcher gives its ranks to do, how they ended, and the error that it raises for them.

It judges a run by the results, never by the exit codes of the ranks: a teardown may fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpexp.distributed.faults import LostContact
from dpexp.distributed.signals import Terminated
from dpexp.record.files import write_atomically
from dpexp.record.record import Record

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
    """Write the result of this rank, in place of that before a restart."""
    folder = os.environ.get(RESULTS)
    if folder:
        path = Path(folder) / f"{os.environ['LOCAL_RANK']}.json"
        write_atomically(path, json.dumps(asdict(result)).encode())


def first_rank_result() -> RankResult | None:
    """The result of the first rank; None while there is none."""
    folder = os.environ.get(RESULTS)
    results = read_results(Path(folder)) if folder else []
    return results[0] if results and results[0].rank == 0 else None


class RanksError(RuntimeError):
    """The run failed in its ranks; the Record of the first rank has the reason."""


def recorded_error(record: Record, fault: BaseException | None) -> BaseException | None:
    """The error that ended a recorded run early; the launcher's own ``fault`` where that is its cause."""
    if record.status == "finished":
        return None
    recorded: Mapping[str, str] = record.error or {}
    message = recorded.get("message", f"the run is {record.status}")
    kinds = {kind.__name__: kind for kind in (Terminated, KeyboardInterrupt, LostContact)}
    error = kinds.get(recorded.get("type", ""), RanksError)(message)
    return fault if isinstance(error, LostContact) and getattr(fault, "is_cause", False) else error


def error_without_record(results: Sequence[RankResult], fault: BaseException | None) -> BaseException:
    """The error of ranks of which the first has no Record.

    A signal to this process, or the end of one of them, is why they ended, whatever they say.
    """
    is_cause = isinstance(fault, KeyboardInterrupt | Terminated) or getattr(fault, "is_cause", False)
    if fault is not None and is_cause:
        return fault
    for result in results:
        if result.status != "finished":
            return RanksError(result.message)
    return fault or RanksError("the ranks ended without a result")

"""RankResult: how a rank ended, in a file that the process which started it reads.

The launcher judges a run by these files, never by the exit codes of the ranks: a teardown may fail.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpexp.record.journal.durable import write_atomically

RESULTS = "DPEXP_RANK_RESULTS"  # in a rank's environment: the folder of the results; without it, no results


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

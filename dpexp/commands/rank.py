"""The process of one rank: runs its launcher's Job; its exit code says whether the ranks start again."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import NoReturn

from dpexp.config.errors import ConfigError, Terminated
from dpexp.config.printable import printable
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import LostContact
from dpexp.distributed.launch import Job, RankResult, end_rank, read_results
from dpexp.distributed.world import World, restarts_left
from dpexp.record.files import JournalError
from dpexp.record.redact import redact
from dpexp.run import execute


def run_rank() -> NoReturn:
    """Run one rank of its launcher's Job and exit.

    The exit code is 0 once the result is written, also for a failed run: the launcher must not restart it.
    A rank that lost its peers exits with 1: the launcher starts all ranks again.
    """
    end_rank(_run_rank(Job.of_rank()))


def _run_rank(job: Job) -> int:
    """The exit code of this rank."""
    sys.argv = job.argv
    world = World.of()
    assert world is not None
    if _has_ended():  # it was restarted for an error in the teardown
        return 0
    config = RunConfig.from_dict(job.config, where="job")
    try:
        with redirect_stdout(sys.stderr):
            outcome = execute(config, quiet=job.quiet)
    except (ConfigError, JournalError) as error:
        RankResult(world.rank, "refused", type(error).__name__, str(error)).write()
        return 0
    except (KeyboardInterrupt, Terminated):  # before the run began: the launcher reports it
        return 1
    if not isinstance(outcome.error, LostContact) or _has_ended():
        return 0
    if world.rank == 0 and restarts_left() > 0:
        print(printable(redact(f"warning: {outcome.error}; the ranks start again")), file=sys.stderr)
    return 1


def _has_ended() -> bool:
    """Whether the first rank has ended, and not by an error after which all start again."""
    of_first = [result for result in read_results() if result.rank == 0]
    return any(result.kind not in (LostContact.kind, Terminated.__name__) for result in of_first)

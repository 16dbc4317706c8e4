"""The process of one rank: runs its launcher's Job."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import NoReturn

from dpexp.config.errors import ConfigError, Terminated
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import LostContact
from dpexp.distributed.job import Job, RankResult, end_rank
from dpexp.distributed.world import World
from dpexp.record.files import JournalError
from dpexp.run import execute


def run_rank() -> NoReturn:
    """Run one rank of its launcher's Job and exit.

    The exit code is 0 once the result is written, also for a failed run. A rank that lost its peers exits
    with 1: the launcher ends those that wait for others.
    """
    job, world = Job.of_rank(), World.of()
    assert world is not None
    sys.argv = job.argv
    code = 0
    try:
        with redirect_stdout(sys.stderr):
            outcome = execute(RunConfig.from_dict(job.config, where="job"), quiet=job.quiet)
        code = int(isinstance(outcome.error, LostContact))
    except (ConfigError, JournalError) as error:
        RankResult(world.rank, "refused", type(error).__name__, str(error)).write()
    except (KeyboardInterrupt, Terminated):  # before the run began: the launcher reports it
        code = 1
    end_rank(code)

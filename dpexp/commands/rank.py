"""The process of one rank: runs its launcher's Job; its exit code says whether the ranks start again."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import NoReturn

from dpexp.config.errors import ConfigError
from dpexp.config.printable import printable
from dpexp.config.run_config import RunConfig
from dpexp.distributed.faults import LostContact
from dpexp.distributed.launch import end_launcher, end_with_launcher
from dpexp.distributed.process_end import end_rank
from dpexp.distributed.rank_results import Job, RankResult, first_rank_result, write_result
from dpexp.distributed.rendezvous import host_range
from dpexp.distributed.signals import Terminated
from dpexp.distributed.world import World, restarts_left
from dpexp.engine.printed_text import on_stderr
from dpexp.record.record import JournalError
from dpexp.record.redact import redact
from dpexp.run import execute


def run_rank() -> NoReturn:
    """Run one rank of its launcher's Job and exit.

    The exit code is 0 once the result is written, also for a failed run: the launcher must not restart it.
    A rank that lost its peers exits with 1, and so does one whose peers are terminated with their host, if
    the number of hosts may change: the launcher restarts its ranks. It also terminates and restarts them
    when a host joins. A launcher that is itself terminated restarts nothing.
    """
    end_rank(_run_rank(Job.read()))


def _run_rank(job: Job) -> int:
    """The exit code of this rank."""
    sys.argv = job.argv
    world = World.of()
    assert world is not None
    config = RunConfig.from_dict(job.config, where="job")
    if _has_ended(but_for=(LostContact.kind, Terminated.__name__)):
        _leave_ended_run(config, world)
        return 0
    try:
        # the launcher relays what the stdout of the other ranks gets
        with on_stderr(sys.stderr if world.local_rank == 0 else sys.stdout):
            outcome = execute(config, quiet=job.quiet)
    except (ConfigError, JournalError) as error:
        write_result(RankResult(world.rank, "refused", type(error).__name__, str(error)))
        return 0
    except (KeyboardInterrupt, Terminated):  # before the run began: the launcher reports it
        return 1
    if _continues(config, outcome.error):
        if world.local_rank == 0 and restarts_left() > 0:
            print(printable(redact(f"warning: {outcome.error}; the ranks start again")), file=sys.stderr)
        return 1
    is_by_peer = isinstance(outcome.error, Terminated) and outcome.error.by_peer
    if is_by_peer and world.local_rank == 0 and world.local_size < world.size:
        end_launcher()
    return 0


def _leave_ended_run(config: RunConfig, world: World) -> None:
    """The end of a rank that was restarted for an error in the teardown, or a host that joins too late."""
    if world.size > world.local_size:
        from dpexp.engine.prepare_ranks import refuse_ranks

        end_with_launcher()
        with suppress(LostContact):
            refuse_ranks(config, world)


def _continues(config: RunConfig, error: BaseException | None) -> bool:
    """Whether the run continues after this error of a rank, on the hosts that are left."""
    if isinstance(error, Terminated):
        options = config.options.launch_options
        assert options is not None
        fewest, most = host_range(options)
        return error.by_peer and fewest < most  # the peer's launcher ends, or restarts it with a new host
    return isinstance(error, LostContact) and not _has_ended(but_for=(LostContact.kind,))


def _has_ended(*, but_for: tuple[str, ...]) -> bool:
    """Whether the first rank has written its result, and not one of the errors after which a run resumes."""
    result = first_rank_result()
    return result is not None and result.kind not in but_for

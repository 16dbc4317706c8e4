"""One rank of a launched run: ``python -m dpexp.rank JOB``, started by torchrun's launcher.

It ends with 0 once what happened is written, whatever it was: then the launcher has nothing to restart.
A rank that lost its peers ends with 1, so that all of them are started anew.
"""

from __future__ import annotations

import json
import sys

from dpexp.config import ConfigError, RunConfig
from dpexp.distributed.faults import LostContact
from dpexp.distributed.launch import Job
from dpexp.distributed.outcome import Told, first_word, tell
from dpexp.distributed.world import World
from dpexp.run import execute


def main(text: str) -> int:
    """Run this rank's part of the job."""
    job = Job(**json.loads(text))
    sys.argv = job.argv
    world = World.of()
    assert world is not None
    if _is_over():
        return 0  # what ended then was only its teardown
    try:
        outcome = execute(RunConfig.from_dict(job.config, where="job"), quiet=job.quiet)
    except ConfigError as error:
        tell(Told(world.rank, "refused", type(error).__name__, str(error)))
        return 0
    return int(isinstance(outcome.error, LostContact) and not _is_over())


def _is_over() -> bool:
    """Whether the first rank has told how the run ended; after lost contact it is to go on."""
    word = first_word()
    return word is not None and word.kind != LostContact.kind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

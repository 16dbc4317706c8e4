"""Several processes as one run: ranks, their group, and torchrun's launcher.

::

    scripts/run.py ddp --devices 2          launch    torchrun's agent, here; no rank outlives it
        rank 0 (journal, uploader)          group     the ranks' common voice: gather, barrier, roll-call
        rank 1                              faults    one message for what ended them
                                            stop      SIGTERM, answered by all ranks at the same step
                                            merge     what the ranks saw, as one Record

Importing this package imports no torch.
"""

from dpexp.distributed.stop import Stop, Terminated
from dpexp.distributed.world import World

__all__ = ["Stop", "Terminated", "World"]

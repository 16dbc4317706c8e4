"""Several processes as one run: the ranks that torchrun starts, their process group, and how they end.

::

    scripts/run.py ddp --devices 2          launch    torchrun's agent in this process; it starts the ranks
        rank 0 (journal, uploader)          process_group    all-gather, broadcast, barrier; who failed
        rank 1                              faults    the errors of peers
                                            signals   SIGTERM, which stops all ranks at the same step
                                            rank_result   the file in which a rank reports its end

Strategies, the engine and ``dpexp.run`` import this package; it imports config, record and devices. Importing
``dpexp.distributed`` does not import torch. Start reading in ``launch`` or in ``process_group``.
"""

from dpexp.distributed.signals import SigtermHandler, Terminated
from dpexp.distributed.world import World

__all__ = ["SigtermHandler", "Terminated", "World"]

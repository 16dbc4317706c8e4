"""Several processes as one run: how ranks are started, how they communicate, and how they end.

    scripts/run.py ddp      launch          torchrun's agent, in this process, starts the ranks
        rank 0 (journal)    process_group   mesh, all-gather, barrier, …; ``faults``: whose error it was
        rank 1              signals         SIGTERM stops every rank at the same step
                            rank_results    what a rank is to do, and how it ended

Every room above and ``dpexp.run`` may import this one. It imports config, record and devices; importing it
does not import torch. Start reading in ``launch``, then ``process_group``.
"""

"""Several processes as one run: how ranks are started, how they communicate, and how they end.

    scripts/run.py ddp      launch      torchrun's agent, in this process, starts the ranks
        rank 0 (journal)    group       mesh, all-gather, barrier, …; ``faults``: whose error it was
        rank 1              signals     SIGTERM stops every rank at the same step
                            world       which rank this is; ``devices``: and which device it uses
                            job         what the launcher tells it, and what it reports

Importing the package does not import torch. Start reading in ``launch``, then ``group``.
"""

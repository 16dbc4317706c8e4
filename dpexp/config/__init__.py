"""Config: the configuration of a run, validated before torch is imported or a file is written.

Start reading in ``run_config``, the complete configuration, and ``strategies``, a file of options for each,
which ``strategy_registry`` finds. ``mesh`` has names, sizes and roles of the dimensions that ranks lie along.
``options`` makes command-line options of fields, ``factories`` has what ``--model`` and ``--data`` name,
``errors`` describes errors in user code, ``process`` has ``DPEXP_HOME``.
Every room may import this one; it imports no other room and not torch.
"""

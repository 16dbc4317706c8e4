"""Config: the configuration of a run, validated before torch is imported or a file is written.

Start with ``run_config``, the complete configuration, and ``strategy_options``, the options of each strategy.
``options`` makes command-line options of fields, ``factories`` has what ``--model`` and ``--data`` name,
``errors`` describes errors in user code, ``process`` has ``DPEXP_HOME``.
Every room may import this one; it imports no other room and not torch.
"""

"""Config: the configuration of a run, validated before torch is imported or a file is written.

Start reading in ``run_config``, the complete configuration, and ``strategy_options``, the options of each
strategy. ``factories`` loads and calls what ``--model`` and its like name. ``mesh`` has the dimensions that
ranks lie along. ``options`` makes command-line options of fields, and ``words`` writes what messages name.
Every package may import this one; it imports no other package and not torch.
"""

"""The options of each strategy, one file for each; found in this folder, and listed nowhere by hand.

A file has a class of options, whose ``strategy`` is its entry in the registry. Imported by
``strategy_registry`` and by the layouts. Start reading in ``whole``.
"""

"""The options of each strategy, one file for each; found in this folder, and listed nowhere by hand.

A file has a class of options, whose ``strategy`` is its entry in the registry. ``strategy_registry`` finds
them, and the layouts in ``dpexp/strategies`` import the classes of their own; they import the rest of
``config`` alone. Start reading in ``whole``, then in ``hybrid``.
"""

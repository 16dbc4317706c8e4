"""Paths: what of a model and a layout verification takes, beside what random batches of a run take.

``reaching`` makes batches that reach rare paths, with the ids of embedding tables that ``looked_up`` finds.
``evaluation`` compares trained weights in eval mode, ``late`` a step of ranks whose collectives end late.
``engine`` and the rest of ``verification`` import it. Start reading in ``reaching``.
"""

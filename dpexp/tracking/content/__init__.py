"""Content: what MLflow shows of a Record.

``content`` maps a Record to params, metrics and tags, ``points`` a journal to the points of metrics by step,
``tables`` to tables, and ``speed_ups`` a sweep to the metric of its runs; ``view`` says what a link opens.
The rest of ``tracking`` imports it; it may import ``report``, ``record`` and the rest of ``tracking``. Start
reading in ``content``, a file of pure functions.
"""

"""Content: what MLflow shows of a Record.

``content`` maps a Record to params, metrics and tags, ``tables`` to tables, ``samples`` to the points of a
run that is not over, ``traces`` to a timeline and ``speed_ups`` to the metric of a sweep; ``view`` says what
a link opens, and ``additions`` copies what users added to an MLflow run that is replaced. The rest of
``tracking`` imports it; it may import ``report``, ``record`` and the rest of ``tracking``. Start reading in
``content``, a file of pure functions.
"""

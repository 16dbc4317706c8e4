"""Sources: where samples come from, one file for each source of data.

``synthetic`` and ``random`` make samples, ``digits`` and ``text`` read them, and
``user_data`` takes a user's data set or loader, in which ``user_samples`` finds inputs and targets. The
registry in ``dpexp/data/registry.py`` finds them; beside it only ``run`` (for data of a program) and
``engine.facts`` import this room. It imports ``data``, ``config`` and ``tensors``. Start reading in
``digits``, then in ``dpexp/data/base.py``.
"""

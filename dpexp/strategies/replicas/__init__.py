"""Replicas: layouts of one process, in which replicas of modules split a batch by rows.

``whole`` and ``block`` wrap modules in ``DataParallel``, ``functional`` composes its four primitives;
``data_parallel`` is the timed wrapper of all three. Imported by ``hybrid`` and the registry. Start reading in
``whole``.
"""

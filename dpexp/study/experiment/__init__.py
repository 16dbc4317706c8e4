"""Experiment: a folder that asks a question: its cells, claims, figure and README.

``experiment`` is the folder's config; ``records`` are its Records as files, of which ``metrics`` takes the
figures that ``claims`` are judged by; ``readme``, ``figure`` (of one of the ``figure_kinds``) and ``index``
write and check its pages. ``sweep``, ``reproduce``, the commands and the configs in experiments/ import it.
Start reading in ``experiment``, then in ``claims``.
"""

"""Render: report sections as terminal text, Markdown and HTML, and the plain tables of the command line.

``terminal``, ``markdown`` and ``page`` write the same sections; ``listing`` writes what ``run.py models``
prints, ``run_list`` what ``runs.py list`` does. Start with ``terminal``.
Imported by ``report``, ``study`` and the scripts; may import the rest of ``report`` and ``record``.
"""

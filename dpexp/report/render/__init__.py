"""Render: report sections as terminal text, Markdown and HTML, and the plain tables of the command line.

``terminal``, ``markdown`` and ``page`` write the same sections, ``lanes`` the timeline of a page; ``listing``
writes what ``run.py models`` prints, ``run_list`` what ``runs.py list`` does. The rest of ``report``,
``study`` and the commands import it; it may import the rest of ``report``, ``record`` and ``config``. Start
reading in ``terminal``.
"""

"""Factories: from the text of an option, as ``linear:in=5``, to the class or function that it names.

``spec`` splits the text, ``registry`` knows the names that an option takes, ``factory`` imports and calls
what the text names. The rest of ``config`` imports this room, as do ``models``, ``data``, ``training``,
``engine`` and the command line; it imports ``config`` alone. Start reading in ``spec``.
"""

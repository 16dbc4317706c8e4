"""Factories: from the text of an option, as ``linear:in=5``, to the class or function that it names.

``models``, ``data``, ``training`` and ``engine`` import this room, and RunConfig the Spec. Start reading in
``spec``.
"""

"""Modules: what layouts do to the modules of a model: find, wrap and rewire them, and carry their hooks.

``wrappers`` has the wrappers and the names that modules have without them, ``submodules`` finds and replaces
modules by name, ``tables`` knows embedding tables as any layout has placed them, ``hooks`` those on
parameters. The strategies import this room, and whoever looks into a placed model. Start reading in
``wrappers``.
"""

"""Change lines of a released function: take out the line that fixed a bug, or put one in that a release lacks."""

import inspect
import sys
import textwrap
from typing import Any

_DONE: list[tuple[Any, str, str]] = []
"""What this process has rewritten: a layout is made more than once."""


def rewrite(owner: Any, name: str, old: str, new: str, **names: Any) -> None:
    """Replace a text in the source of ``owner.name``, a function or method, and use what that makes.

    ``names`` are what the new text needs beside the names of its module. Raises ValueError where the released
    source does not have the old text exactly once.
    """
    if (owner, name, new) in _DONE:
        return
    _DONE.append((owner, name, new))
    found = inspect.getattr_static(owner, name)
    function = getattr(found, "__func__", found)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(old) != 1:
        raise ValueError(f"{owner.__name__}.{name} has the text {old!r} {source.count(old)} times")
    space = dict(vars(sys.modules[function.__module__]))
    space |= names
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), inspect.getsourcefile(function) or name, "exec"), space, made)
    setattr(owner, name, made[name])

"""Live objects: a model, data and a loss that a program gives to ``dpexp.run``, named while it runs.

A config is text. During the run ``dpexp.live:Net`` names the object, as ``module:name`` names one of any
module. Afterwards, and in any other process, the name stands for nothing, and using it is an error that says
what to do.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dpexp.config.errors import ConfigError

PREFIX = "dpexp.live:"
_objects: dict[str, Any] = {}


@contextmanager
def named(objects: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """{option: ``dpexp.live:NAME``} of these objects, by option; the names stand for them until it exits."""
    names: dict[str, str] = {}
    for option, value in objects.items():
        name = _name(option, value)
        while name in _objects or name in globals():
            name += "_"
        _objects[name] = value
        names[option] = name
    try:
        yield {option: PREFIX + name for option, name in names.items()}
    finally:
        for name in names.values():
            del _objects[name]


def _name(option: str, value: Any) -> str:
    """The name of a function, else of the object's class; that of the option for a lambda."""
    name = getattr(value, "__name__", type(value).__name__)
    return name if name.isidentifier() and not name.startswith("_") else option


def sha256(name: str) -> str | None:
    """Of what the object named ``dpexp.live:NAME`` computes; None of one that this process does not have.

    It covers the structure of a module and the shapes of its state, not its weights, which repeats may draw
    again. It covers the source of its classes, or of a function, where that is known.
    """
    value = _objects.get(name.removeprefix(PREFIX))
    if value is None:
        return None
    from torch import nn
    from torch.nn.parameter import is_lazy

    lines, sources = [re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))], [value]
    if isinstance(value, nn.Module):
        for key, entry in value.state_dict().items():
            shape = "lazy" if is_lazy(entry) else tuple(getattr(entry, "shape", ()))
            lines.append(f"{key} {shape} {getattr(entry, 'dtype', '')}")
        kinds = (kind for module in value.modules() for kind in type(module).__mro__)
        sources = list(dict.fromkeys(kinds))
    lines += [_source(each) for each in sources]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _source(value: Any) -> str:
    """The source of a function or a class of the user; empty where there is none."""
    if str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
        return ""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):  # typed into an interpreter, or an object of another kind
        return ""


def live_options(config: Mapping[str, Any]) -> list[str]:
    """The options of a flat config whose value was a live object."""
    return [name for name, value in config.items() if isinstance(value, str) and value.startswith(PREFIX)]


def gone(name: str) -> ConfigError:
    """The error for a name whose object is not in this process."""
    return ConfigError(
        f"{name} was an object of a Python program, and this process does not have it: run that program "
        "again, or put the object, or a function that makes it, into a file and name it as FILE.py:NAME"
    )


def __getattr__(name: str) -> Any:
    """Raises AttributeError, as modules do: torch.compile asks every module for names of its own."""
    if name in _objects:
        return _objects[name]
    raise AttributeError(str(gone(PREFIX + name)))

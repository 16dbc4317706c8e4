"""Options: a config field that is also a command-line option, and the check of its value."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any

from dpexp.config.errors import ConfigError, did_you_mean


def option(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    flag: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line option.

    ``flag`` spells a boolean's two forms (``--check/--no-check``); ``metavar`` is shown in the help.
    """
    metadata = {"help": help, "min": min, "max": max, "choices": choices, "metavar": metavar, "flag": flag}
    return dataclasses.field(default=default, metadata=metadata)


def option_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a config class that are command-line options, in order."""
    return [field for field in dataclasses.fields(cls) if "help" in field.metadata]


@functools.cache
def types_of(cls: type) -> dict[str, Any]:
    """The type of each field of a config class."""
    return typing.get_type_hints(cls)


def flag_name(field: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return "--" + field.replace("_", "-")


def typed_value(cls: type, key: str, value: Any, where: str) -> Any:
    """The value as its field's type: a list becomes a tuple, an int a float; else ConfigError."""
    wanted = types_of(cls)[key]
    accepted = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for kind in accepted:
        if typing.get_origin(kind) is tuple:
            if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
                return tuple(value)
        elif kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
    raise ConfigError(f"{where}: '{key}' takes {' or '.join(map(_called, accepted))}, found {value!r}")


def _called(kind: Any) -> str:
    """A type as a user who wrote no Python calls it."""
    if typing.get_origin(kind) is tuple:
        return 'a list of texts, as ["block2"]'
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "nothing")


def validate(holder: object, field: dataclasses.Field[Any]) -> None:
    value = typed_value(type(holder), field.name, getattr(holder, field.name), type(holder).__name__)
    object.__setattr__(holder, field.name, value)
    if value is None:
        return
    name, low, high = flag_name(field.name), field.metadata["min"], field.metadata["max"]
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(
            f"{name} '{value}': it is one of {', '.join(filter(None, choices))}{did_you_mean(value, choices)}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} {value}: it must be a finite number")
    if low is not None and value < low:
        raise ConfigError(f"{name} {value}: it must be at least {low:g}")
    if high is not None and value > high:
        raise ConfigError(f"{name} {value}: it must be at most {high}")
    if isinstance(value, tuple) and not value:
        raise ConfigError(f"{name}: at least one name is needed")


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

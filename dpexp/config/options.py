"""Options: config fields that are also command-line options, and the check of their values.

The checks do not use pydantic, which takes 0.24 s of CPU time (import, schemas). With it ``hybrid --help``
would take 0.65 s instead of 0.41 s; a bare Typer app takes 0.29 s.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

from dpexp.config import names
from dpexp.config.errors import ConfigError
from dpexp.config.words import did_you_mean, shown


def option(
    default: Any,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    flag: str | None = None,
    is_name: bool = False,
) -> Any:
    """A dataclass field that is also a command-line option.

    ``flag`` spells the two forms of a boolean (``--check/--no-check``); ``metavar`` stands for the value in
    the help; ``is_name`` marks the name of a run or an experiment.
    """
    limits = {"min": min, "max": max, "choices": choices, "is_name": is_name}
    metadata = {"help": help, "metavar": metavar, "flag": flag, **limits}
    return dataclasses.field(default=default, metadata=metadata)


def option_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a config class that are command-line options, in order."""
    return [field for field in dataclasses.fields(cls) if "help" in field.metadata]


def default_values(cls: type) -> dict[str, Any]:
    """The default of each option of a config class, JSON-ready."""
    return {field.name: to_json(field.default) for field in option_fields(cls)}


def types_of(cls: type) -> dict[str, Any]:
    """The type of each field of a config class."""
    return typing.get_type_hints(cls)


def flag_name(field: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return "--" + field.replace("_", "-")


_TYPE_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: 'a list of texts, as ["block2"]',
    NoneType: "nothing",
}
"""Types in words for users who do not write Python."""


def as_type(value: Any, wanted: Any, name: str) -> Any:
    """The value as the wanted type: an int may become a float, a list a tuple. Raises ConfigError."""
    kinds = typing.get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    kinds = tuple(typing.get_origin(kind) or kind for kind in kinds)
    for kind in kinds:
        if kind is tuple:
            if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
                return tuple(value)
        elif isinstance(value, bool) != (kind is bool):
            continue  # a bool is also an int
        elif kind is float and isinstance(value, int):
            return float(value)
        elif isinstance(value, kind):
            return value
    names = " or ".join(_TYPE_NAMES[kind] for kind in kinds)
    raise ConfigError(f"'{name}' takes {names}, found {shown(value)}")


def validate(config: object) -> None:
    """Check every option of a config and store its value as the type of its field. Raises ConfigError."""
    types = types_of(type(config))
    for field in option_fields(type(config)):
        value = as_type(getattr(config, field.name), types[field.name], field.name)
        object.__setattr__(config, field.name, value)
        value = to_json(value)
        problem = "" if value in (None, to_json(field.default)) else _problem(value, field.metadata)
        if problem:
            raise ConfigError(f"{flag_name(field.name)} {shown(value)}: it must {problem}")


def _problem(value: Any, limits: Mapping[str, Any]) -> str:
    """What a value of the right type must be and is not; empty if it is."""
    low, high, choices = limits["min"], limits["max"], limits["choices"]
    if choices and value not in choices:
        return f"be one of {', '.join(filter(None, choices))}{did_you_mean(value, choices)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "be a finite number"
    if low is not None and value < low:
        return f"be at least {low:g}"
    if high is not None and value > high:
        return f"be at most {high:.0f}"
    if limits["is_name"] and value:
        return names.name_problem(value)
    return "name at least one" if value == [] else ""


def to_json(value: Any) -> Any:
    """The value of an option as JSON has it."""
    return list(value) if isinstance(value, tuple) else value

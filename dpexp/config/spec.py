"""Spec: what ``--model`` and ``--data`` say, parsed; and the factory that it names, found and called.

One syntax for both::

    NAME                              a registered one, with its defaults
    NAME:KEY=VALUE,...                with options
    NAME:ARGUMENT,KEY=VALUE,...       where the registered one takes an argument (a path)
    package.module:factory            your own; the current directory is searched too
    path/to/file.py:factory           your own, from a file
    ...:factory:KEY=VALUE,...         with options

Values are Python literals (``4``, ``0.5``, ``True``, ``(8,16)``); anything else is a string. An option
that is a Python keyword reaches the factory with an underscore: ``in=5`` as ``in_=5``.

Parsing imports neither torch nor the factory.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import keyword
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dpexp.config import ConfigError, did_you_mean, unknown
from dpexp.config.user_errors import as_config_error, describe

_OWN = re.compile(r"(?P<place>.+?\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)(?::(?P<options>.*))?")
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_NUMBERS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


@dataclass(frozen=True)
class Option:
    """An option of a registered model or data source; ``fits`` names the Features that decide it."""

    name: str
    type: type
    default: Any
    help: str
    fits: str | None = None
    min: float | None = 1


@dataclass(frozen=True)
class Entry:
    """A registered model or data source: ``factory`` is ``module:attribute``, imported when built."""

    help: str
    factory: str
    options: tuple[Option, ...] = ()
    argument: str | None = None


@dataclass(frozen=True)
class Spec:
    """One parsed text. ``name`` is empty for a factory of one's own; ``options`` are those given."""

    text: str
    name: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    argument: str | None = None


def parse(text: str, registry: Mapping[str, Entry], flag: str, what: str) -> Spec:
    """The Spec of a text; ``flag`` and ``what`` (``--model``, ``model``) appear in the errors.

    Raises ConfigError for an unknown name or option, a value of a wrong type and a file that is
    not there.
    """
    text = text.strip()
    head, _, rest = text.partition(":")
    if head in registry:
        return _registered(text, head, rest, registry[head], f"{flag} {text}")
    own = _OWN.fullmatch(text)
    if own is None:
        if head.endswith(".py") or "/" in head:
            raise ConfigError(f"{flag} {text}: name the factory after the file, as {head}:make")
        raise unknown(what, head, registry, flag)
    place = own["place"]
    if place.endswith(".py") and not Path(place).expanduser().is_file():
        raise ConfigError(f"{flag} {text}: there is no file {place}")
    return Spec(text, "", f"{place}:{own['name']}", _options(own["options"] or "", f"{flag} {text}"))


def _registered(text: str, name: str, rest: str, entry: Entry, where: str) -> Spec:
    argument = None
    if entry.argument is not None:
        argument, rest = _argument(rest)
        if not argument:
            raise ConfigError(f"{where}: it needs {entry.argument}, as {name}:{entry.argument}")
    known = {option.name: option for option in entry.options}
    given = _options(rest, where)
    for key in given:
        if key not in known:
            raise _no_option(key, known, name, where)
    return Spec(
        text, name, entry.factory, {k: _checked(known[k], v, where) for k, v in given.items()}, argument
    )


def _argument(rest: str) -> tuple[str, str]:
    """``"a,b.txt,length=8"`` -> ``("a,b.txt", "length=8")``: the options are the last KEY=VALUE parts."""
    parts = _split(rest)
    end = len(parts)
    while end > 1 and _OPTION.fullmatch(parts[end - 1]):
        end -= 1
    return ",".join(parts[:end]), ",".join(parts[end:])


def _options(text: str, where: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in _split(text) if text.strip() else ():
        match = _OPTION.fullmatch(part)
        if match is None:
            raise ConfigError(f"{where}: '{part.strip()}' is no option; write KEY=VALUE, separated by commas")
        if match[1] in options:
            raise ConfigError(f"{where}: option '{match[1]}' is given twice")
        options[match[1]] = _literal(match[2].strip())
    return options


def _split(text: str) -> list[str]:
    """The parts between the commas that stand outside of every bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _checked(option: Option, value: Any, where: str) -> Any:
    if option.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if option.type is str:
        value = str(value)
    if not isinstance(value, option.type) or (option.type is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: '{option.name}' takes {_NUMBERS[option.type]}, found {value!r}")
    if option.min is not None and isinstance(value, int | float) and not value >= option.min:
        raise ConfigError(f"{where}: '{option.name}' must be at least {option.min:g}, found {value!r}")
    return value


def _no_option(key: str, known: Iterable[str], owner: str, where: str) -> ConfigError:
    known = list(known)
    there = f"there is {', '.join(known)}" if known else "it takes none"
    return ConfigError(f"{where}: {owner} takes no option '{key}'; {there}{did_you_mean(key, known)}")


# --- the factory ---------------------------------------------------------------------------------


def load(spec: Spec, where: str) -> Callable[..., Any]:
    """Import what the Spec names. Raises ConfigError that says which part was not found, or raised."""
    place, _, name = spec.factory.rpartition(":")
    found: Any = _file(place, where) if place.endswith(".py") else _module(place, where)
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_") and callable(vars(found)[key])]
            raise ConfigError(f"{where}: {place} has no '{part}'{did_you_mean(part, public)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{where}: {spec.factory} is a {type(found).__name__}, not a factory to call")
    return found  # type: ignore[no-any-return]


def call(
    factory: Callable[..., Any], spec: Spec, where: str, context: Mapping[str, Any] | None = None
) -> Any:
    """Call the factory with the options, and with those of ``context`` that it has a parameter for.

    Raises ConfigError when it takes no such option, lacks one, or raises: which exception, and where.
    """
    options = {key + "_" * keyword.iskeyword(key): value for key, value in spec.options.items()}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature: let the call itself judge
        signature = None
    if signature is not None:
        taken = signature.parameters
        options |= {
            key: value for key, value in (context or {}).items() if key in taken and key not in options
        }
        _check_call(signature, options, spec, where)
    try:
        with as_config_error(spec.factory):
            return factory(**options)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_call(signature: inspect.Signature, options: Mapping[str, Any], spec: Spec, where: str) -> None:
    by_name = [
        p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        for key in options:
            if key not in [p.name for p in by_name]:
                raise _no_option(key.rstrip("_"), [p.name.rstrip("_") for p in by_name], spec.factory, where)
    missing = [p.name for p in by_name if p.default is p.empty and p.name not in options]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise ConfigError(
            f"{where}: {spec.factory} needs {', '.join(missing)}: write {spec.factory}:{example}"
        )


def _module(name: str, where: str) -> ModuleType:
    _searched(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: cannot import {name}: {describe(error)}") from error


def _file(text: str, where: str) -> ModuleType:
    """The module of a Python file; imported once a version, so that a model and its data may share a file."""
    path = Path(text).expanduser().resolve()
    name = f"dpexp_own_{path.stem}_{zlib.crc32(bytes(path) + path.read_bytes()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    _searched(path.parent)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{where}: cannot import {text}: {describe(error)}") from error
    return module


def _searched(folder: Path) -> None:
    """Let imports find modules of this folder, after everything installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

"""Spec: the parsed text of ``--model``, ``--data``, ``--loss``, ``--optimizer``, and the factory it names.

All have one syntax::

    NAME                              a registered model, data source or loss with its defaults
    NAME:KEY=VALUE,...                with options
    NAME:ARGUMENT,KEY=VALUE,...       where the registered entry takes an argument (a path)
    package.module:factory            a user factory; the current directory is searched too
    path/to/file.py:factory           a user factory in a file
    ...:factory:KEY=VALUE,...         with options

Values are Python literals (``4``, ``0.5``, ``True``, ``(8,16)``); anything else is a string. An option
whose name is a Python keyword reaches the factory with an underscore: ``in=5`` as ``in_=5``.

Parsing imports neither torch nor the factory.
"""

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

from dpexp.config.errors import (
    ConfigError,
    as_config_error,
    available,
    describe,
    did_you_mean,
    no_file,
    shown,
    unknown,
)
from dpexp.config.options import as_type

_FACTORY = re.compile(r"(.+?\.py|[A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(?::(.*))?")
_LISTED = re.compile(r"(\w+)[\s,]+(\w+\s*=.*)", re.DOTALL)
"""``linear,in=5``: a name and options without the colon between."""
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(.*?)((?:,\s*[A-Za-z_]\w*\s*=[^,]*)*)", re.DOTALL)
"""``a,b.txt,length=8``: the argument, and the KEY=VALUE parts at the end."""


@dataclass(frozen=True)
class Option:
    """An option of a registered entry; ``feature`` names the property of Features that is its default."""

    name: str
    type: type
    default: Any
    help: str
    feature: str | None = None
    min: float | None = 1


@dataclass(frozen=True)
class Entry:
    """A registered model, data source, loss or optimizer; ``factory`` is ``module:attribute``.

    It is imported when used. If it ``takes_more`` options than those here, it checks them itself; their
    values are numbers, true and false, and tuples of numbers.
    """

    help: str
    factory: str
    options: tuple[Option, ...] = ()
    argument: str | None = None
    takes_more: bool = False


@dataclass(frozen=True)
class Spec:
    """A parsed text. ``name`` is empty for a user factory; ``options`` has only the given ones."""

    text: str
    name: str
    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    argument: str | None = None


def parse(text: str, registry: Mapping[str, Entry], flag: str, kind: str) -> Spec:
    """The Spec of a text; ``flag`` and ``kind`` (``--model``, ``model``) appear in the errors.

    Raises ConfigError for an unknown name or option, a value of the wrong type and a missing file.
    """
    text = text.strip()
    where = f"{flag} {text}"
    name, _, rest = text.partition(":")
    if name in registry:
        return _parse_registered(text, name, rest, registry[name], where)
    match = _FACTORY.fullmatch(text)
    if match is None:
        if name.endswith(".py") or "/" in name:
            raise ConfigError(f"{where}: name the factory after the file, as {name}:make")
        if (listed := _LISTED.fullmatch(text)) and listed[1] in registry:
            raise ConfigError(f"{where}: options follow a colon, as {listed[1]}:{listed[2]}")
        raise unknown(kind, name, registry, flag)
    module, function, options = match.groups()
    if module.endswith(".py") and not Path(module).expanduser().is_file():
        raise ConfigError(f"{where}: {no_file(module)}")
    return Spec(text, "", f"{module}:{function}", _parse_options(options or "", where))


def _parse_registered(text: str, name: str, rest: str, entry: Entry, where: str) -> Spec:
    argument = None
    if entry.argument is not None:
        match = _ARGUMENT.fullmatch(rest)
        assert match is not None
        argument, rest = match[1], match[2].removeprefix(",")
        if not argument:
            raise ConfigError(f"{where}: it needs {entry.argument}, as {name}:{entry.argument}")
    known = {option.name: option for option in entry.options}
    options = _parse_options(rest, where)
    for key, value in options.items():
        if key not in known and entry.takes_more:
            _check_numbers(key, value, where)
            continue
        if key not in known:
            raise ConfigError(f"{where}: {_unknown_option(name, key, known)}")
        options[key] = _checked(known[key], value, where)
    return Spec(text, name, entry.factory, options, argument)


def _check_numbers(name: str, value: Any, where: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(number, int | float) for number in numbers):
        raise ConfigError(f"{where}: '{name}' takes a number, true or false, found {shown(value)}")


def _parse_options(text: str, where: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in _split(text) if text.strip() else ():
        match = _OPTION.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"{where}: '{part.strip()}' is not an option; write KEY=VALUE, separated by commas"
            )
        if match[1] in options:
            raise ConfigError(f"{where}: option '{match[1]}' is given twice")
        options[match[1]] = _literal(match[2].strip())
    return options


def _split(text: str) -> list[str]:
    """The parts between the commas that are not inside brackets."""
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
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # {[]: 1}, or deeply nested
        return text


def _checked(option: Option, value: Any, where: str) -> Any:
    value = str(value) if option.type is str else as_type(value, option.type, option.name, where)
    if option.min is not None and isinstance(value, int | float) and not value >= option.min:
        raise ConfigError(f"{where}: '{option.name}' must be at least {option.min:g}, found {shown(value)}")
    return value


def _unknown_option(factory: str, key: str, known: Iterable[str]) -> str:
    known = list(known)
    return f"{factory} takes no option '{key}'; {available(known)}{did_you_mean(key, known)}"


# --- the factory ---------------------------------------------------------------------------------


def load(spec: Spec, where: str, *, objects: bool = False) -> Any:
    """Import the factory of a Spec, with ``objects`` also one that is no factory, such as a data set.

    Raises ConfigError for a missing module or name and a failing import.
    """
    module, _, name = spec.factory.rpartition(":")
    try:
        found: Any = _import_file(module) if module.endswith(".py") else _import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: cannot import {module}: {describe(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_") and callable(vars(found)[key])]
            raise ConfigError(f"{where}: {module} has no '{part}'{did_you_mean(part, public)}")
        found = getattr(found, part)
    if not callable(found) and not objects:
        raise ConfigError(f"{where}: {spec.factory} is of type {type(found).__name__}, not a factory to call")
    return found


def check_no_options(spec: Spec, found: object, where: str) -> None:
    """Raises ConfigError for options of an object, which is used as it is."""
    if spec.options:
        kind = type(found).__name__
        raise ConfigError(f"{where}: {spec.factory} is a {kind} and not a factory: it takes no options")


def call(
    factory: Callable[..., Any], spec: Spec, where: str, context: Mapping[str, Any] | None = None
) -> Any:
    """Call the factory with the options, and with the values of ``context`` that it has a parameter for.

    Raises ConfigError for an unknown or missing option, and for an exception in the factory.
    """
    options = {key + "_" * keyword.iskeyword(key): value for key, value in spec.options.items()}
    try:
        with as_config_error(spec.factory):
            parameters = inspect.signature(factory).parameters
            values = {key: value for key, value in (context or {}).items() if key in parameters} | options
            _check_call(list(parameters.values()), values, spec.factory)
            return factory(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_call(parameters: list[inspect.Parameter], values: Mapping[str, Any], factory: str) -> None:
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in by_name]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in values:
            if key not in names:
                known = [name.rstrip("_") for name in names]
                raise ConfigError(_unknown_option(factory, key.rstrip("_"), known))
    missing = [p.name for p in by_name if p.default is p.empty and p.name not in values]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise ConfigError(f"{factory} needs {', '.join(missing)}: write {factory}:{example}")


def _import_module(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    return importlib.import_module(name)


def _import_file(text: str) -> ModuleType:
    """The module of a Python file, imported once for each content: a model and its data may share a file."""
    path = Path(text).expanduser().resolve()
    name = f"dpexp_user_{path.stem}_{zlib.crc32(bytes(path) + path.read_bytes()):08x}"
    if name not in sys.modules:
        _add_to_path(path.parent)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _add_to_path(folder: Path) -> None:
    """Let imports find modules of this folder, after all installed ones."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

"""Factory: the class or function that an option names, to be imported and called with its options.

Registry: the names that an option such as ``--model`` knows, with the options that each takes."""

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
from dpexp.config.spec import Spec, parse_options


@dataclass(frozen=True)
class Factory:
    """``target`` is ``module:attribute`` or ``file.py:attribute``; ``name`` is empty for one of the user's.

    ``where`` begins every error (``--model linear:in=5``). ``options`` has the given ones, ``defaults`` those
    of a registered entry, ``argument`` the path that some entries take.
    """

    where: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    argument: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The dotted name of the module, or the path of the file."""
        return self.target.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        """The name in the module."""
        return self.target.rpartition(":")[2]

    @property
    def all_options(self) -> dict[str, Any]:
        """The given options, and the defaults of the others."""
        return {**self.defaults, **self.options}

    def load(self, *, objects: bool = False) -> Any:
        """Import it, with ``objects`` also what is not callable, such as a data set.

        Raises ConfigError for a missing module or name and a failing import.
        """
        try:
            found: Any = _import_file(self.module) if self.module.endswith(".py") else _import(self.module)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self.where}: cannot import {self.module}: {describe(error)}") from error
        for part in self.attribute.split("."):
            try:
                found = getattr(found, part)
            except AttributeError as error:
                raise ConfigError(f"{self.where}: {self._missing(found, part, error)}") from None
        if not callable(found) and not objects:
            kind = type(found).__name__
            raise ConfigError(f"{self.where}: {self.target} is of type {kind}, not a factory to call")
        return found

    def _missing(self, holder: Any, name: str, error: AttributeError) -> str:
        if isinstance(error.__cause__, ConfigError):  # a module of dpexp says why it has none
            return str(error)
        names = vars(holder)
        public = [key for key in names if not key.startswith("_") and callable(names[key])]
        return f"{self.module} has no '{name}'{did_you_mean(name, public)}"

    def call(self, loaded: Callable[..., Any], context: Mapping[str, Any] | None = None) -> Any:
        """Call what was loaded with the options, and with the values of ``context`` it has a parameter for.

        Raises ConfigError for an unknown or missing option, and for an exception in the factory.
        """
        options = {key + "_" * keyword.iskeyword(key): value for key, value in self.options.items()}
        try:
            with as_config_error(self.target):
                parameters = inspect.signature(loaded).parameters
                values = {key: value for key, value in (context or {}).items() if key in parameters} | options
                _check_call(list(parameters.values()), values, self.name or self.target)
                return loaded(**values)
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from error

    def check_no_options(self, loaded: object) -> None:
        """Raises ConfigError for options of an object, which is used as it is."""
        if self.options:
            kind = f"a {type(loaded).__name__}"
            raise ConfigError(f"{self.where}: {self.target} is {kind} and not a factory: it takes no options")


def unknown_option(factory: str, key: str, known: Iterable[str]) -> str:
    """The error for an option that a factory does not take."""
    known = list(known)
    return f"{factory} takes no option '{key}'; {available(known)}{did_you_mean(key, known)}"


def _check_call(parameters: list[inspect.Parameter], values: Mapping[str, Any], factory: str) -> None:
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in by_name]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in values:
            if key not in names:
                known = [name.rstrip("_") for name in names]
                raise ConfigError(unknown_option(factory, key.rstrip("_"), known))
    missing = [p.name for p in by_name if p.default is p.empty and p.name not in values]
    if missing:
        example = ",".join(f"{name}=…" for name in missing)
        raise ConfigError(f"{factory} needs {', '.join(missing)}: write {factory}:{example}")


def _import(name: str) -> ModuleType:
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


_LISTED = re.compile(r"(\w+)[\s,]+(\w+\s*=.*)", re.DOTALL)
"""``linear,in=5``: a name and options without the colon between."""


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

    @property
    def defaults(self) -> dict[str, Any]:
        """The value of each option that is not given."""
        return {option.name: option.default for option in self.options}


class Registry(dict[str, Entry]):
    """Entries by name; ``flag`` and ``kind`` (``--model``, ``model``) appear in errors."""

    def __init__(self, flag: str, kind: str, entries: Mapping[str, Entry]) -> None:
        super().__init__(entries)
        self.flag, self.kind = flag, kind

    def find(self, spec: Spec) -> Factory:
        """What a Spec names: an entry or a user factory, of which neither is imported.

        Raises ConfigError for an unknown name or option, a value of the wrong type and a missing file.
        """
        where = f"{self.flag} {spec.text.strip()}"
        if spec.name in self:
            return _registered(spec, self[spec.name], where)
        found = spec.user_factory()
        if found is None:
            raise self._unknown(spec, where)
        module, attribute, options = found
        if module.endswith(".py") and not Path(module).expanduser().is_file():
            raise ConfigError(f"{where}: {no_file(module)}")
        return Factory(where, f"{module}:{attribute}", parse_options(options, where))

    def _unknown(self, spec: Spec, where: str) -> ConfigError:
        if spec.name.endswith(".py") or "/" in spec.name:
            return ConfigError(f"{where}: name the factory after the file, as {spec.name}:make")
        if (listed := _LISTED.fullmatch(spec.text.strip())) and listed[1] in self:
            return ConfigError(f"{where}: options follow a colon, as {listed[1]}:{listed[2]}")
        return unknown(self.kind, spec.name, self, self.flag)


def _registered(spec: Spec, entry: Entry, where: str) -> Factory:
    argument, rest = (None, spec.rest) if entry.argument is None else spec.argument()
    if argument == "":
        raise ConfigError(f"{where}: it needs {entry.argument}, as {spec.name}:{entry.argument}")
    known = {option.name: option for option in entry.options}
    options = parse_options(rest, where)
    for key, value in options.items():
        if key in known:
            options[key] = _checked(known[key], value, where)
        elif entry.takes_more:
            _check_numbers(key, value, where)
        else:
            raise ConfigError(f"{where}: {unknown_option(spec.name, key, known)}")
    return Factory(where, entry.factory, options, spec.name, argument, entry.defaults)


def _check_numbers(name: str, value: Any, where: str) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(number, int | float) for number in numbers):
        raise ConfigError(f"{where}: '{name}' takes a number, true or false, found {shown(value)}")


def _checked(option: Option, value: Any, where: str) -> Any:
    value = str(value) if option.type is str else as_type(value, option.type, option.name, where)
    if option.min is not None and isinstance(value, int | float) and not value >= option.min:
        raise ConfigError(f"{where}: '{option.name}' must be at least {option.min:g}, found {shown(value)}")
    return value

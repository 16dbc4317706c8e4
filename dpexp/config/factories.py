"""Factories: what an option such as ``--model`` names: code to import, and the options to call it with.

All these options have one syntax::

    NAME                              an alias of the option, such as ``linear``: a text of the next form
    package.module:attribute          code; the current directory is searched too
    path/to/file.py:attribute         code in a file
    ...:KEY=VALUE,...                 with options: parameters of what is called, by name
    ...:PATH,KEY=VALUE,...            short for ``path=PATH``; the path may have commas

Values are Python literals (``4``, ``0.5``, ``True``, ``(8,16)``); anything else is a string. Parameters that
are annotated as numbers, truth values or texts get nothing else. A parameter whose name would be a Python
keyword has an underscore at its end: ``in=5`` is ``in_=5``.

An object that a program gives to ``dpexp.run`` has a name, ``dpexp.live:Net``, and the factory of that run
holds it; in any other process the name is an error that says what to do.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import keyword
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dpexp.config.errors import ConfigError, as_config_error, describe, unknown
from dpexp.config.options import as_type
from dpexp.config.words import available, did_you_mean, no_file

Aliases = Mapping[str, str]
"""The names that an option knows: each stands for ``module:attribute``, with options after another colon."""

_CODE = re.compile(r"(.+?\.py|[A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(?::(.*))?", re.DOTALL)
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_PATH = re.compile(r"(.*?)((?:,\s*[A-Za-z_]\w*\s*=[^,]*)*)", re.DOTALL)
"""``a,b.txt,length=8``: the path, and the options at the end."""
LIVE = "dpexp.live:"
"""Begins the name of an object of a program."""
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str)}
"""The annotations whose values are checked."""


@dataclass(frozen=True)
class Factory:
    """Code that is not yet imported. ``where`` begins every error, as ``--model linear:in=5``.

    ``target`` is ``module:attribute`` or ``file.py:attribute``, ``options`` are those given, and ``name`` is
    the alias, empty for code of the user. ``live`` is the object that a program has given, and else None.
    """

    where: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    live: Any = field(default=None, compare=False)

    @property
    def is_live(self) -> bool:
        """Whether it names an object of a program, which this process need not have."""
        return self.target.startswith(LIVE)

    @property
    def module(self) -> str:
        """The dotted name of the module, or the path of the file."""
        return self.target.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        """The name in the module."""
        return self.target.rpartition(":")[2]

    def load(self) -> Any:
        """Import it. Raises ConfigError for a missing module or name and a failing import."""
        if self.is_live:
            if self.live is None:
                raise ConfigError(f"{self.where}: {gone(self.target)}")
            return self.live
        try:
            if self.module.endswith(".py"):
                loaded: Any = _import_file(self.module)
            else:
                _add_to_path(Path.cwd())
                loaded = importlib.import_module(self.module)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self.where}: cannot import {self.module}: {describe(error)}") from error
        for part in self.attribute.split("."):
            try:
                loaded = getattr(loaded, part)
            except AttributeError as error:
                names = did_you_mean(part, dir(loaded))
                raise ConfigError(f"{self.where}: {self.module} has no '{part}'{names}") from error
        return loaded

    def call(self, loaded: Callable[..., Any], context: Mapping[str, Any] | None = None) -> Any:
        """Call what was loaded with the options, and with the values of ``context`` it has a parameter for.

        Raises ConfigError for an option that is unknown, missing or of another type, and for any exception.
        """
        with self._errors():
            parameters = _parameters(loaded)
            free = parameters.keys() - self._by_parameter
            given = {name: value for name, value in (context or {}).items() if name in free}
            return loaded(**given | self._arguments(parameters, given))

    def bound(self, loaded: Callable[..., Any], positional: int) -> Callable[..., Any]:
        """What was loaded with the options, to be called with so many positional arguments: a loss.

        Raises ConfigError as ``call``.
        """
        with self._errors():
            parameters = _parameters(loaded)
            options = self._arguments(parameters, list(parameters)[:positional])
            return functools.partial(loaded, **options) if options else loaded

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with as_config_error(self.target):
                yield
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(self.where) else f"{self.where}: {text}") from error

    def _arguments(self, parameters: Mapping[str, inspect.Parameter], given: Collection[str]) -> Any:
        """The options as the parameters take them that are not ``given``."""
        by_name = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known = {p.name: p for p in by_name if p.name not in given}
        takes_others = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        arguments = {}
        for name, value in self._by_parameter.items():
            if name in known:
                arguments[name] = _of_type(value, known[name].annotation, name.rstrip("_"))
            elif takes_others:
                arguments[name] = value
            else:
                key, others = name.rstrip("_"), [each.rstrip("_") for each in known]
                raise ConfigError(
                    f"{self._called} takes no option '{key}'; {available(others)}{did_you_mean(key, others)}"
                )
        missing = [p.name for p in known.values() if p.default is p.empty and p.name not in arguments]
        if missing:
            example = ",".join(f"{name}=…" for name in missing)
            raise ConfigError(f"{self._called} needs {', '.join(missing)}: write {self._called}:{example}")
        return arguments

    @property
    def _by_parameter(self) -> dict[str, Any]:
        return {key + "_" * keyword.iskeyword(key): value for key, value in self.options.items()}

    @property
    def _called(self) -> str:
        return self.name or self.target

    def check_no_options(self, loaded: object) -> None:
        """Raises ConfigError for options of an object, which is used as it is."""
        if self.options:
            kind = f"a {type(loaded).__name__}"
            raise ConfigError(f"{self.where}: {self.target} is {kind} and not a factory: it takes no options")


def find(flag: str, text: str, aliases: Aliases) -> Factory:
    """What the text of an option names; nothing is imported.

    Raises ConfigError for an unknown alias, a missing file and options that cannot be read.
    """
    text = text.strip()
    where, (name, _, options) = f"{flag} {text}", text.partition(":")
    is_alias = name in aliases
    match = _CODE.fullmatch(aliases[name] if is_alias else text)
    if match is None:
        raise _unknown(flag, text, name, aliases)
    module, attribute, own = match[1], match[2], _options(match[3] or "", where)
    if module.endswith(".py") and not Path(module).expanduser().is_file():
        raise ConfigError(f"{where}: {no_file(module)}")
    given = _options(options, where) if is_alias else {}
    return Factory(where, f"{module}:{attribute}", own | given, name if is_alias else "")


def _unknown(flag: str, text: str, name: str, aliases: Aliases) -> ConfigError:
    if name.endswith(".py") or "/" in name:
        return ConfigError(f"{flag} {text}: name the factory after the file, as {name}:make")
    if not aliases:
        return ConfigError(f"{flag} {text}: write package.module:function or FILE.py:function")
    return unknown(flag.lstrip("-"), name, aliases, flag)


def _import_file(text: str) -> ModuleType:
    """The module of a Python file, imported once for each content: a model and its data may share a file.

    Raises whatever its import raises.
    """
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
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# --- objects of a program ------------------------------------------------------------------------


def live_names(objects: Mapping[str, Any]) -> dict[str, str]:
    """``dpexp.live:NAME`` for the object of each option.

    NAME is that of a function, else of the object's class; that of the option for a lambda.
    """
    names: dict[str, str] = {}
    for option, value in objects.items():
        name = getattr(value, "__name__", type(value).__name__)
        name = name if name.isidentifier() and not name.startswith("_") else option
        while LIVE + name in names.values():
            name += "_"
        names[option] = LIVE + name
    return names


def live_options(config: Mapping[str, Any]) -> list[str]:
    """The options of a flat config whose value was an object of a program."""
    return [name for name, value in config.items() if isinstance(value, str) and value.startswith(LIVE)]


def gone(name: str) -> ConfigError:
    """The error for a name whose object is not in this process."""
    return ConfigError(
        f"{name} was an object of a Python program, and this process does not have it: run that program "
        "again, or put the object, or a function that makes it, into a file and name it as FILE.py:NAME"
    )


# --- options -------------------------------------------------------------------------------------


def _options(text: str, where: str) -> dict[str, Any]:
    """The values in ``KEY=VALUE,...`` or ``PATH,KEY=VALUE,...``. Raises ConfigError."""
    options: dict[str, Any] = {}
    parts = _split(text) if text.strip() else []
    if parts and not _OPTION.fullmatch(parts[0]) and (match := _PATH.fullmatch(text)):
        options |= {"path": match[1]} if match[1] else {}
        parts = _split(match[2])[1:]
    for part in parts:
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


def _parameters(called: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """By name. A function in C has no signature and may take anything."""
    try:
        return inspect.signature(called).parameters
    except ValueError:
        return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}


def _of_type(value: Any, annotation: Any, name: str) -> Any:
    kind = _TYPES.get(str(getattr(annotation, "__name__", annotation)))
    if kind is None:
        return value
    return str(value) if kind is str else as_type(value, kind, name)

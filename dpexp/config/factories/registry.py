"""Registry: the names that an option such as ``--model`` knows, with the options that each takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.config.errors import ConfigError, no_file, shown, unknown
from dpexp.config.factories.factory import Factory, unknown_option
from dpexp.config.factories.spec import Spec, parse_options
from dpexp.config.options import as_type

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

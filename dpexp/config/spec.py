"""Spec: the text of an option that names a model, data, a loss, an optimizer or a layout, in its parts.

All have one syntax::

    NAME                              a registered model, data source or loss with its defaults
    NAME:KEY=VALUE,...                with options
    NAME:ARGUMENT,KEY=VALUE,...       where the registered entry takes an argument (a path)
    package.module:factory            a user factory; the current directory is searched too
    path/to/file.py:factory           a user factory in a file
    ...:factory:KEY=VALUE,...         with options

Values are Python literals (``4``, ``0.5``, ``True``, ``(8,16)``); anything else is a string. An option
whose name is a Python keyword reaches the factory with an underscore: ``in=5`` as ``in_=5``.

    text --RunConfig--> Spec --Registry.find, once--> Factory --load, call--> model, data source, optimizer
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from dpexp.config.errors import ConfigError

_FACTORY = re.compile(r"(.+?\.py|[A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(?::(.*))?")
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"(.*?)((?:,\s*[A-Za-z_]\w*\s*=[^,]*)*)", re.DOTALL)
"""``a,b.txt,length=8``: the argument, and the KEY=VALUE parts at the end."""


class Spec(str):
    """A text, and its parts before and after the first colon. What is after it, a registry reads."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The text alone."""
        return str(self)

    @property
    def name(self) -> str:
        """What is before the first colon."""
        return self.strip().partition(":")[0]

    @property
    def rest(self) -> str:
        """What is after it."""
        return self.strip().partition(":")[2]

    def argument(self) -> tuple[str, str]:
        """What follows the name, as an argument and the options at the end."""
        match = _ARGUMENT.fullmatch(self.rest)
        assert match is not None
        return match[1], match[2].removeprefix(",")

    def user_factory(self) -> tuple[str, str, str] | None:
        """(module or file, attribute, options) of a user factory; None for a text of another form."""
        match = _FACTORY.fullmatch(self.strip())
        return None if match is None else (match[1], match[2], match[3] or "")


if TYPE_CHECKING:

    class SpecField:
        """A field of a config that is given as text, and read as a Spec: this is what a type checker sees."""

        def __get__(self, config: object, owner: Any) -> Spec: ...

        def __set__(self, config: object, value: Spec | str) -> None: ...

else:
    SpecField = Spec


def parse_options(text: str, where: str) -> dict[str, Any]:
    """The values in ``KEY=VALUE,...``. Raises ConfigError that begins with ``where``."""
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

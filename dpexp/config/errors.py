"""Errors that users catch, exceptions in user code in one line, and the words of a message."""

from __future__ import annotations

import difflib
import reprlib
import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dpexp.config.process import ROOT

_MAX_CHARACTERS, _MAX_LINES = 2000, 15
_MAX_NAME = 100


class ConfigError(ValueError):
    """Bad input. The message names what is wrong, where, what was found and what to do. Exit code 2."""


class VerificationError(RuntimeError):
    """A layout or a training loop does not compute what a single device computes.

    ``kind`` says which tensors differ: outputs, loss, gradients, buffers, parameters, updates or optimizer.
    ``step`` counts from 1, and is 0 for a model that is wrong as placed. ``tensor`` is the parameter, buffer
    or output that differs most, and ``module`` the module in which the difference begins; each is empty for
    the model itself, and where it is not known. ``error`` is relative, and more than ``limit``; both are None
    where the difference has no size. ``cause`` is what a Record has as ``verification.cause``.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        step: int = 0,
        tensor: str = "",
        module: str = "",
        error: float | None = None,
        limit: float | None = None,
        cause: str = "",
    ) -> None:
        super().__init__(message)
        self.kind, self.step, self.tensor, self.module = kind, step, tensor, module
        self.error, self.limit, self.cause = error, limit, cause

    @classmethod
    def of_record(cls, message: str, verification: Mapping[str, Any]) -> VerificationError:
        """The error of a run whose Record has this verification."""
        entries = [verification.get("last_step"), verification.get("first_steps"), verification]
        failed = next(each for each in entries if each and each["passed"] is False)
        return cls(message, **failed["worst"], cause=verification["cause"])


class NotComparableError(RuntimeError):
    """Nothing could be compared with a single device: the message says why, and what to do."""


class Terminated(BaseException):
    """The process received SIGTERM: the run ends with status killed, with a complete journal."""


def available(names: Iterable[str]) -> str:
    """``there are block1, block2``; ``there is block1``; ``there is none``."""
    names = list(names)
    return f"there {'are' if len(names) > 1 else 'is'} {', '.join(names) or 'none'}"


def no_file(path: str | Path) -> str:
    """``there is no file data.txt in /home/me``: of a relative path with the folder at which it starts."""
    start = "" if Path(path).expanduser().is_absolute() else f" in {Path.cwd()}"
    return f"there is no file {path}{start}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``": did you mean 'block3'?"`` if the name resembles a known one, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f": did you mean '{close[0]}'?" if close else ""


def unknown(kind: str, found: object, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not known: ``WHERE: unknown KIND 'NAME'; there are …``."""
    known, name = sorted(known), shortened(str(found), _MAX_NAME)
    prefix = f"{where}: " if where else ""
    return ConfigError(f"{prefix}unknown {kind} '{name}'; {available(known)}{did_you_mean(name, known)}")


@contextmanager
def as_config_error(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Make any exception a ConfigError: ``WHAT raised ValueError: … (file, line 3)``.

    Not signals, nor the types ``passing``.
    """
    try:
        yield
    except BaseException as error:  # user code may raise any, such as SystemExit
        if isinstance(error, (ConfigError, KeyboardInterrupt, Terminated, *passing)):
            raise
        raise ConfigError(f"{what} raised {describe(error)}") from error


def shortened(text: str, characters: int = _MAX_CHARACTERS, lines: int = _MAX_LINES) -> str:
    """The text, or where it is too long its beginning with the number of characters that it has."""
    beginning = "\n".join(text[:characters].split("\n")[:lines])
    return text if beginning == text else f"{beginning}… ({len(text)} characters)"


def shown(value: Any) -> str:
    """A value as Python writes it, short however deep or long it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_NAME
    short.maxlevel = 3
    return short.repr(value)


def text_of(error: BaseException) -> str:
    """``str(error)`` and its notes."""
    return "\n".join(filter(None, [str(error), *getattr(error, "__notes__", ())]))


def describe(error: BaseException) -> str:
    """``ValueError: no such width (my/file.py, line 12)``: the exception and the line of user code.

    Of a failed import, which a lazy package explains by its cause only, with the cause.
    """
    described = _named(error)
    if isinstance(error, SyntaxError):
        return described
    cause = error.__cause__ if isinstance(error, ImportError) else None
    while cause is not None:
        described, cause = f"{described.rstrip('.')}; caused by {_named(cause)}", cause.__cause__
    return shortened(described, _MAX_CHARACTERS // 2, _MAX_LINES // 2) + _user_line(error)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def _user_line(error: BaseException) -> str:
    """The innermost line that belongs neither to dpexp nor to a library; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_library = "/lib/python" in frame.filename or not path.is_file()
        is_ours = not {ROOT / "dpexp", ROOT / "scripts"}.isdisjoint(path.resolve().parents)
        if not is_library and not is_ours and path.name != "dpexp":  # the installed command
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


Content = TypeVar("Content", bound=Hashable)


def merged(rows: Iterable[tuple[str, Content]]) -> list[tuple[str, Content]]:
    """(name, content) rows, each in place of those of equal content whose names differ in one index only.

    A row stands where the first of them stood.
    """
    found = [(tuple(name.split(".")), content) for name, content in rows]
    for position in range(max((len(parts) for parts, _ in found), default=0)):
        groups: dict[Hashable, list[tuple[str, ...]]] = {}
        contents: dict[Hashable, Content] = {}
        for number, (parts, content) in enumerate(found):
            is_index = position < len(parts) and parts[position].isdecimal()
            key = (parts[:position], parts[position + 1 :], content) if is_index else number
            groups.setdefault(key, []).append(parts)
            contents[key] = content
        found = [(_joined(several, position), contents[key]) for key, several in groups.items()]
    return [(".".join(parts), content) for parts, content in found]


def _joined(several: Sequence[tuple[str, ...]], position: int) -> tuple[str, ...]:
    """The parts of names that are equal but for an index: ``0-11``, or ``0-3,7`` where some are missing."""
    first = several[0]
    if len(several) == 1:
        return first
    text = ranges(sorted({int(parts[position]) for parts in several}), ",")
    return (*first[:position], text, *first[position + 1 :])


def listed(names: Iterable[str], most: int = 10) -> str:
    """``layers.0-299.norm, head``: names for a message, at most so many, those that are alike as one."""
    found = [name for name, _ in merged((name, None) for name in names)]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


# --- numbers in a message ----------------------------------------------------------------


def consecutive(numbers: Iterable[int]) -> list[range]:
    """Each number with those after it that follow without a gap: 15, 16, 17, 0, 1 as 15 to 17 and 0 to 1."""
    found: list[range] = []
    for number in numbers:
        if found and number == found[-1].stop:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


def span(run: range, joint: str = "-") -> str:
    """``0-24``, or ``30`` of one number."""
    return str(run[0]) if len(run) == 1 else f"{run[0]}{joint}{run[-1]}"


def ranges(numbers: Iterable[int], joint: str = ", ") -> str:
    """``0-15, 49``: numbers in order, those that follow each other as one range."""
    return joint.join(map(span, consecutive(numbers)))


def plural(count: int, noun: str) -> str:
    """``1 thread``, ``2 threads``, ``20 batches``."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count} {noun}{ending}"


def be(count: int) -> str:
    """The verb after so many: ``is``, ``are``."""
    return "is" if count == 1 else "are"

"""Errors that users catch, and exceptions in user code in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpexp.config.process import ROOT
from dpexp.config.words import MAX_CHARACTERS, MAX_LINES, MAX_SHOWN, available, did_you_mean, shortened


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


def unknown(kind: str, found: object, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not known: ``WHERE: unknown KIND 'NAME'; there are …``."""
    known, name = sorted(known), shortened(str(found), MAX_SHOWN)
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
    return shortened(described, MAX_CHARACTERS // 2, MAX_LINES // 2) + _user_line(error)


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

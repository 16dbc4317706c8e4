"""User errors: ConfigError for bad input, and exceptions in user code, described in one line."""

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.config.process import ROOT

_PACKAGE = ROOT / "dpexp"
_LIBRARIES = ("site-packages", "dist-packages", "importlib")


class ConfigError(ValueError):
    """Bad input. The message names what is wrong, where, what was found and what to do. Exit code 2."""


def available(names: Iterable[str]) -> str:
    """``there are block1, block2``; ``there is block1``; ``there is none``."""
    names = list(names)
    return f"there {'are' if len(names) > 1 else 'is'} {', '.join(names) or 'none'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``": did you mean 'block3'?"`` if the name resembles a known one, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f": did you mean '{close[0]}'?" if close else ""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not known: ``WHERE: unknown KIND 'NAME'; there are …``."""
    known = sorted(known)
    prefix = f"{where}: " if where else ""
    return ConfigError(f"{prefix}unknown {kind} '{name}'; {available(known)}{did_you_mean(name, known)}")


@contextmanager
def as_config_error(what: str) -> Iterator[None]:
    """Turn every exception inside into a ConfigError: ``WHAT raised ValueError: … (file, line 3)``."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} raised {describe(error)}") from error


def describe(error: BaseException) -> str:
    """``ValueError: no such width (my/file.py, line 12)``: the exception and the line of user code."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    cause = error.__cause__
    if cause is None:
        return text + _user_line(error)
    if str(cause) not in str(error):
        text += f", because of {type(cause).__name__}: {cause}"
    return text + (_user_line(error) or _user_line(cause))


def _user_line(error: BaseException) -> str:
    """The innermost line that belongs neither to dpexp nor to a library; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_library = any(part in frame.filename for part in _LIBRARIES) or not path.is_file()
        if not is_library and _PACKAGE not in path.resolve().parents and path.parent.name != "scripts":
            return f" ({frame.filename}, line {frame.lineno})"
    return ""

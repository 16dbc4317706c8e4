"""Mistakes in code that is not ours, told in one line: which exception, and on which line of whose file."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.config import ConfigError

_OURS = Path(__file__).resolve().parents[1]
_LIBRARIES = ("site-packages", "dist-packages", "importlib")


@contextmanager
def as_config_error(what: str) -> Iterator[None]:
    """Whatever is raised inside becomes a ConfigError: ``WHAT raised ValueError: … (file, line 3)``."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} raised {describe(error)}") from error


def describe(error: BaseException) -> str:
    """``ValueError: no such width (my/file.py, line 12)``: what was raised, on which line of the user's."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    message = f": {error}" if str(error) else ""
    cause, because = error.__cause__, ""
    if cause is not None and str(cause) not in str(error):
        because = f", because of {type(cause).__name__}: {cause}"
    line = _line(error) or (_line(cause) if cause is not None else "")
    return f"{type(error).__name__}{message}{because}{line}"


def _line(error: BaseException) -> str:
    """The innermost line that belongs neither to us nor to a library, if there is one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        foreign = any(part in frame.filename for part in _LIBRARIES) or not path.is_file()
        if not foreign and _OURS not in path.resolve().parents and path.parent.name != "scripts":
            return f" ({frame.filename}, line {frame.lineno})"
    return ""

"""Errors in user code, described in one line: which exception, and on which line of which file."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.config.home import ROOT

_PACKAGE = ROOT / "dpexp"
_LIBRARIES = ("site-packages", "dist-packages", "importlib")


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

"""ConfigError for bad input, and the text that lists the known names and suggests the nearest one."""

import difflib
from collections.abc import Iterable


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

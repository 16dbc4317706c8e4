"""ConfigError: bad input, and the words for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input: what was wrong, where, what was found and what to do. Exit code 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``": did you mean 'block3'?"`` for a near miss of a known word, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean '{close[0]}'?" if close else ""


def unknown(what: str, word: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that is not one of the known: ``unknown WHAT 'word'; it is one of …``."""
    known = sorted(known)
    return ConfigError(
        f"{where + ': ' if where else ''}unknown {what} '{word}'; "
        f"there is {', '.join(known)}{did_you_mean(word, known)}"
    )

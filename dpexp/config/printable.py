"""Printable: text from outside as characters that a screen shows and never obeys.

Names of runs, hosts and modules, errors and tags come from other machines and programs. ESC, BEL, C1 controls
and their like would command a terminal, and marks of direction turn around what stands beside them: each
becomes the characters of its escape in JSON. What was JSON therefore stays JSON of the same value.
"""

import json
import re
from html import escape

_CHARACTERS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls of ASCII and Latin-1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # of the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # ends of lines, annotations and tags
    "\ud800-\udfff"  # halves of surrogate pairs, which no encoding has
)
_IN_TEXT, OBEYED = re.compile(f"[{_CHARACTERS}]"), re.compile(f"[\t\n{_CHARACTERS}]")
"""What is not printable in a text, and in a line."""


def printable(text: str) -> str:
    """The text as it can be shown, with its lines and tabs."""
    return _IN_TEXT.sub(_escaped, text)


def printable_line(text: object) -> str:
    """The text as one line: ends of lines and tabs are shown as well."""
    return OBEYED.sub(_escaped, str(text))


def in_html(text: str) -> str:
    """The text as a page shows it, without markup, in an element or in quotes."""
    return escape(printable(text))


def _escaped(found: re.Match[str]) -> str:
    return r"\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]

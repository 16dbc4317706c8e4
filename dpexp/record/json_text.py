"""JSON text: read so that whatever is written from it later can be written.

JSON may hold half of a surrogate pair (``"\\ud83d"``), which no file, terminal, font or database takes. Every
text of a journal or Record passes here, where the half becomes the six characters of its escape.
"""

import json
import re
from typing import Any

_MARKS = (b"\\ud", b"\\uD", b"\xed")
"""What JSON has wherever it has a half, or a pair: as an escape, or as bytes."""
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\."
    r"|(?P<character>[\ud800-\udfff])"
)


def loads(content: bytes) -> Any:
    """The value of a JSON text, with halves of surrogate pairs escaped. Raises ValueError."""
    if not any(mark in content for mark in _MARKS):
        return json.loads(content)
    return json.loads(_ESCAPES.sub(_escaped, content.decode("utf-8", "surrogatepass")))


def _escaped(found: re.Match[str]) -> str:
    """A half as the text of its escape; anything else as it is."""
    if found["half"]:
        return f"\\{found['half']}"
    return rf"\\u{ord(found['character']):x}" if found["character"] else found[0]

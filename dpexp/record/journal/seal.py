"""Seal: a file that derives from a journal says from which state of it, and has a checksum of itself.

::

    { …,
     "made_from": {"bytes": 5316, "crc": "1c04ab5e"},       the journal's length and checksum
     "crc": "8d3f01aa"                                      of all bytes before
    }

So a reader finds a changed byte without reading the journal. A file without a seal, as the first versions of
dpexp wrote, is not believed: the journal is read instead.
"""

import functools
import json
import logging
import zlib
from pathlib import Path
from typing import Any

from dpexp.config.process import command
from dpexp.config.ranges import plural
from dpexp.record import json_text
from dpexp.record.journal.durable import read_file

MADE_FROM, CRC = "made_from", "crc"
_MARK = b',\n "crc": "'
_SOURCE = b'\n "made_from": '


def checksum(path: Path) -> dict[str, Any]:
    """The length and checksum of a file. Raises OSError."""
    content = read_file(path)
    return {"bytes": len(content), "crc": f"{zlib.crc32(content):08x}"}


def seal(text: str, made_from: dict[str, Any]) -> bytes:
    """The JSON object in ``text`` with what it was made from and its checksum."""
    inside = text.rstrip().removesuffix("}").rstrip()
    comma = "" if inside == "{" else ","
    body = f"{inside}{comma}\n {json.dumps(MADE_FROM)}: {json.dumps(made_from)}"
    return body.encode() + _MARK + b'%08x"\n}\n' % zlib.crc32(body.encode())


def is_sealed(content: bytes) -> bool:
    """Whether a file has a seal and no byte of it has changed."""
    body, _, end = content.rpartition(_MARK)
    return end == b'%08x"\n}\n' % zlib.crc32(body)


def made_from(content: bytes) -> dict[str, Any] | None:
    """What a sealed file was made from, without parsing the rest; None without a seal, or a changed byte."""
    if not is_sealed(content):
        return None
    source: dict[str, Any] = json.loads(content.rpartition(_MARK)[0].rpartition(_SOURCE)[2])
    return source


def unseal(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object in a sealed file, and what it was made from.

    Raises ValueError for a file that has changed, or that has no seal: nothing says what it was made from.
    """
    data = json_text.loads(content)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    if not is_sealed(content):
        has_seal = MADE_FROM in data or CRC in data
        raise ValueError("its checksum differs" if has_seal else "it has no seal")
    made_from: dict[str, Any] = data.pop(MADE_FROM)
    del data[CRC]
    return data, made_from


def changed(source: dict[str, Any], journal: Path, *, by_length: bool = False) -> str:
    """How the journal differs from what a file was made from; empty where it does not, or there is none.

    ``by_length`` does not read the journal, and misses a changed byte. Raises OSError.
    """
    if not journal.exists():
        return ""
    if (size := journal.stat().st_size) != source["bytes"]:
        return f"it was made from {plural(source['bytes'], 'byte')} of a journal of {size}"
    if not by_length and not checksum(journal).items() <= source.items():
        return "the journal has changed since it was made"
    return ""


def read_derived(path: Path, journal: Path, *, by_length: bool = False) -> dict[str, Any]:
    """The object in a file that was made from the journal as it is now (see ``changed``).

    Raises OSError where there is none, and ValueError where it is damaged or the journal is another.
    """
    data, source = unseal(read_file(path))
    if difference := changed(source, journal, by_length=by_length):
        raise ValueError(difference)
    return data


@functools.cache
def warn_of(path: Path, error: str) -> None:
    """Say once on stderr that a derived file is not used."""
    message = "warning: %s: %s; the journal is read instead, %s check --repair writes the file again"
    logging.getLogger(__name__).warning(message, path, error, command("runs"))

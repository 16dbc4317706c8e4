"""Output: what commands print. All text for a terminal passes ``say``, unless dpexp has laid it out."""

import sys
from typing import IO, Any

import typer

from dpexp.config.printable import printable

_PLAIN = str.maketrans("█·×µ…", "#.xu~")
"""What stands for these characters where an encoding lacks one of them."""


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print plain text, JSON or CSV on stdout or stderr; a terminal obeys nothing in it."""
    typer.echo(_encodable(printable(text), file or (sys.stderr if err else sys.stdout)), file, nl, err)


def show_report(report: str, file: IO[Any] | None = None) -> None:
    """Print what ``terminal_text`` returns on stdout: its texts are printable, its colours its own."""
    typer.echo(_encodable(report, file or sys.stdout), file)


def _encodable(text: str, stream: IO[Any]) -> str:
    """The text in plainer characters where the stream's encoding needs it; others become question marks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    found = text.encode(encoding, "replace").decode(encoding)
    return found if found == text else text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)

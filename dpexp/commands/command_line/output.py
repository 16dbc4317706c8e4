"""Output: what commands print. All text for a terminal passes ``say``, unless dpexp has laid it out."""

import sys
from typing import IO, Any

import typer

from dpexp.config.printable import printable


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print plain text, JSON or CSV on stdout or stderr; a terminal obeys nothing in it."""
    typer.echo(_encodable(printable(text), file or (sys.stderr if err else sys.stdout)), file, nl, err)


def show_report(report: str, file: IO[Any] | None = None) -> None:
    """Print what ``terminal_text`` returns on stdout: its texts are printable, its colours its own."""
    typer.echo(_encodable(report, file or sys.stdout), file)


def _encodable(text: str, stream: IO[Any]) -> str:
    """The text with a question mark for each character that the stream's encoding has not."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)

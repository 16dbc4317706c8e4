"""Output: what commands print. All text for a terminal passes ``say``, unless dpexp has laid it out."""

from typing import IO, Any

import typer

from dpexp.config.printable import printable


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print plain text, JSON or CSV on stdout or stderr; a terminal obeys nothing in it."""
    typer.echo(printable(text), file, nl, err)


def show_report(report: str, file: IO[Any] | None = None) -> None:
    """Print what ``terminal_text`` returns on stdout: its texts are printable, its colours its own."""
    typer.echo(report, file)

"""The Typer app of a script: its help, how it is run, and the exit code of each error."""

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import typer

from dpexp.config.errors import ConfigError, Terminated, describe, text_of
from dpexp.config.printable import printable
from dpexp.config.words import shortened
from dpexp.record.files import JournalError
from dpexp.record.redact import redact

DEBUG = "--debug"
"""The option that shows the traceback of an error, also of an error in the other options."""


class Exit(IntEnum):
    """The exit code of a command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_DELIVERED = 3
    INTERRUPTED = 130
    TERMINATED = 143


def make_app(help: str, *, completion: bool = False) -> typer.Typer:
    """The Typer app of a script; ``completion`` of the shell on request."""
    return typer.Typer(
        help=help,
        add_completion=completion,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run_app(app: typer.Typer) -> None:
    """Run the app and exit; bad input is one message on stderr and exit code 2, any other error one and 1."""
    buffer_stdout()
    code: Any = Exit.DONE
    try:
        _call(app)
    except (ConfigError, JournalError) as error:
        print_error(error, text_of(error))
        code = Exit.USAGE
    except Exception as error:
        print_unexpected(error)
        code = Exit.FAILED
    except SystemExit as end:
        code = end.code
    if not isinstance(code, int | None):
        sys.exit(code)
    if "LOCAL_RANK" in os.environ:  # started by torchrun
        from dpexp.distributed.job import end_rank

        end_rank(int(code or 0))
    sys.exit(code)


def _call(app: typer.Typer) -> None:
    """Call the command of this process's command line.

    The command that the first words name is an app by itself. A group would build all of its commands, and
    Typer imports pydantic to parse the options of a group: that takes twice as long.
    """
    program, words = [Path(sys.argv[0]).name], sys.argv[1:]
    for group in app.registered_groups:
        if words[:1] == [group.name] and group.typer_instance is not None:
            program.append(words.pop(0))
            app = group.typer_instance
            break
    for command in app.registered_commands if len(app.registered_commands) > 1 else ():
        if words[:1] == [command.name]:
            program.append(words.pop(0))
            app = make_app("")
            app.registered_commands = [command]
    app(words, prog_name=" ".join(program))


def buffer_stdout() -> None:
    """Give stdout a buffer where it has none: under ``python -u``, with which torchrun starts its ranks.

    A character that its encoding lacks, as a path may have, is escaped, as on stderr.
    Without one, Python ignores that a pipe took only the first part of a long text, and loses the rest.
    """
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        os.set_blocking(raw.fileno(), True)
        buffer = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Convert any other exception into one message and exit code 1, and Ctrl-C into exit code 130."""
    try:
        yield
    except (ConfigError, JournalError, typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt as error:
        print_error(error, "interrupted")
        raise typer.Exit(Exit.INTERRUPTED) from error
    except Terminated as error:
        print_error(error, str(error))
        raise typer.Exit(Exit.TERMINATED) from error
    except BaseException as error:  # the code of a model may call sys.exit, or raise anything
        print_unexpected(error)
        raise typer.Exit(Exit.FAILED) from error


def print_unexpected(error: BaseException) -> None:
    """Print an error that has no message for users."""
    hint = "" if DEBUG in sys.argv else f"; {DEBUG} shows the traceback"
    print_error(error, f"{describe(error).rstrip('.')}{hint}")


def print_error(error: BaseException, message: str) -> None:
    """Print the message on stderr, after the traceback with ``--debug``; without credentials."""
    if DEBUG in sys.argv:
        say(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    say(f"error: {shortened(redact(message))}", err=True)


def say(text: str, *, err: bool = False, nl: bool = True, file: IO[Any] | None = None) -> None:
    """Print plain text or JSON on stdout or stderr; a terminal obeys nothing in it."""
    typer.echo(printable(text), file, nl, err)


def show_report(report: str, file: IO[Any] | None = None) -> None:
    """Print what ``terminal_text`` returns on stdout: its texts are printable, its colours its own."""
    typer.echo(report, file)

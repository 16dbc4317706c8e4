"""The Typer app of a script: its help, how it is run, and the exit code of each error."""

import contextlib
import errno
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
from typer.core import TyperArgument, TyperCommand, TyperGroup

from dpexp.commands.options import OUTPUT, flags
from dpexp.config.errors import ConfigError, Terminated, describe, shortened, text_of, unknown
from dpexp.config.printable import printable
from dpexp.config.process import ROOT, is_checkout
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.distributed.launch import end_rank
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


class RichHelp:
    """``--help`` in named panels; without Typer's markup mode, which would draw a box around errors too.

    Words of the command line, which an error quotes, never control the terminal.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _printable_errors():
            return super().make_context(*args, **options)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        with _printable_errors():
            return super().invoke(ctx)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        del formatter  # rich prints
        rich_utils.rich_format_help(obj=self, ctx=ctx, markup_mode="rich")  # type: ignore[arg-type]

    def get_help_option(self, ctx: Any) -> Any:
        """``--help`` itself, in the last panel."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.rich_help_panel, option.metavar = OUTPUT, ""
        return option


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # those of click, or of the copy in Typer, are shown by it
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = printable(error.message)  # type: ignore[attr-defined]
        raise


class Command(RichHelp, TyperCommand):
    """A command, in whose help a value has one name and a flag none: no types as ``<bool>`` beside them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) or getattr(parameter, "is_flag", False):
                parameter.display_type_rich = _no_type  # type: ignore[attr-defined]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Say of an option of other strategies whose it is."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # NoSuchOption of click, or of the copy in Typer
            flag, known = getattr(error, "option_name", ""), STRATEGY_OPTIONS
            owners = [name for name, options in known.items() if flag in flags(options)]
            if not owners or ctx.info_name not in known or ctx.info_name in owners:
                raise
            return ctx.fail(f"{flag} is an option of {', '.join(owners)}, not of {ctx.info_name}")


def _no_type(ctx: Any) -> None:
    del ctx


class SuggestingGroup(RichHelp, TyperGroup):
    """A group whose error for an unknown command lists the known ones and suggests the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(str(unknown("command", args[0], self.commands)))
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A Typer app whose commands are ``Command``."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **{"cls": Command, **options})


def make_app(help: str, *, completion: bool = False) -> typer.Typer:
    """The Typer app of a script: no pretty tracebacks; ``completion`` of the shell on request."""
    return App(
        cls=SuggestingGroup,
        help=help,
        add_completion=completion,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def run_app(app: typer.Typer) -> None:
    """Run the app and exit; bad input is one message on stderr and exit code 2, any other error one and 1."""
    buffer_stdout()
    code: Any = Exit.DONE
    try:
        leave_deleted_folder()
        app()
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
        end_rank(int(code or 0))
    sys.exit(code)


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


def leave_deleted_folder() -> None:
    """Change a working directory that was deleted to ``ROOT``: MKL ends a process without one.

    Raises ConfigError for a ``DPEXP_HOME`` that would be, or be in, the deleted directory.
    """
    with contextlib.suppress(FileNotFoundError):
        os.getcwd()
        return
    path = os.environ.get("DPEXP_HOME", "" if is_checkout() else ".")
    if path and not Path(path).expanduser().is_absolute():
        hint = "change to one that exists, or make DPEXP_HOME absolute"
        raise ConfigError(f"DPEXP_HOME {path}: the working directory was deleted: {hint}")
    os.chdir(ROOT)
    say(f"warning: the working directory was deleted; relative paths start at {ROOT}", err=True)


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
    if os.strerror(errno.EMFILE) in message and "ulimit" not in message:
        message += "; this process may open more with a higher ulimit -n"
    if DEBUG in sys.argv:
        say(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    say(f"error: {shortened(redact(message))}", err=True)


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

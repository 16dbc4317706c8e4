"""The command line, made from the config classes: one option for each field, one command for each strategy.

The value of an option comes from the command line, else from ``DPEXP_<NAME>``, else from the ``--config``
file, else from the default of the field. Imports neither torch nor mlflow.
"""

import contextlib
import dataclasses
import inspect
import io
import json
import os
import sys
import tomllib
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from dpexp.commands.help_panels import OUTPUT, panel_of, panels
from dpexp.config.errors import (
    ConfigError,
    Terminated,
    describe,
    did_you_mean,
    shortened,
    shown,
    text_of,
    unknown,
)
from dpexp.config.factories.spec import Spec
from dpexp.config.options import flag_name, option_fields, types_of
from dpexp.config.process import ROOT, is_checkout
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_registry import STRATEGY_OPTIONS
from dpexp.record.record import JournalError
from dpexp.record.redact import redact

PREFIX = "DPEXP_"
OTHER_VARIABLES = ("DPEXP_HOME", "DPEXP_PARENT", "DPEXP_SHARED")
"""Environment variables with the prefix that do not set an option."""
ALIASES = {"experiment": ["MLFLOW_EXPERIMENT_NAME"]}
"""Environment variables of other programs that set an option where ``DPEXP_<NAME>`` does not."""
MAX_CONFIG_BYTES = 1_000_000
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
    """``--help`` in named panels; without Typer's markup mode, which would draw a box around errors too."""

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


def flags(options: type) -> list[str]:
    """The flags of the options of a config class: ``--check`` and ``--no-check`` of one with two forms."""
    fields = option_fields(options)
    return [flag for each in fields for flag in (each.metadata["flag"] or flag_name(each.name)).split("/")]


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


def app(help: str, *, completion: bool = False) -> typer.Typer:
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


def main(app: typer.Typer) -> None:
    """Run the app; bad input is one message on stderr and exit code 2, any other error one and 1."""
    buffer_stdout()
    try:
        leave_deleted_folder()
        app()
    except (ConfigError, JournalError) as error:
        print_error(error, text_of(error))
        sys.exit(Exit.USAGE)
    except Exception as error:
        print_unexpected(error)
        sys.exit(Exit.FAILED)


def buffer_stdout() -> None:
    """Give stdout a buffer where it has none: under ``python -u``, with which torchrun starts its ranks.

    Without one, Python ignores that a pipe took only the first part of a long text, and loses the rest.
    """
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        os.set_blocking(raw.fileno(), True)
        buffer = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)


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
    typer.echo(f"warning: the working directory was deleted; relative paths start at {ROOT}", err=True)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn any other exception into one message and exit code 1, and Ctrl-C into exit code 130."""
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
        typer.echo(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    typer.echo(f"error: {shortened(redact(message))}", err=True)


# --- options -------------------------------------------------------------------------------------


def with_options(function: Callable[..., None], strategy: str) -> Callable[..., None]:
    """Give the function a parameter for each option of the strategy in place of ``**values``, for Typer."""
    signature = inspect.signature(function, eval_str=True)
    given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    output = [p.replace(kind=p.KEYWORD_ONLY) for p in given]
    by_panel: dict[str, list[inspect.Parameter]] = {}
    for cls in (STRATEGY_OPTIONS[strategy], RunConfig):
        types = types_of(cls)
        for field in option_fields(cls):
            panel = panel_of(field.name, strategy)
            parameter = _parameter(types[field.name], field, panel)
            by_panel.setdefault(panel, []).append(parameter)
    found = [parameter for panel in panels(strategy) for parameter in by_panel.get(panel, [])]
    function.__signature__ = inspect.Signature([*found, *output])  # type: ignore[attr-defined]
    return function


def _parameter(kind: Any, field: dataclasses.Field[Any], panel: str) -> inspect.Parameter:
    meta, default = field.metadata, field.default
    if isinstance(kind, UnionType):
        kind = next(member for member in typing.get_args(kind) if member is not type(None))
    if typing.get_origin(kind) is tuple:
        kind, default = list[str], list(typing.cast("tuple[str, ...]", default))
    if kind is Spec:
        kind = str
    choices = f" One of {', '.join(filter(None, meta['choices']))}." if meta["choices"] else ""
    variable, flag = PREFIX + field.name.upper(), meta["flag"] or flag_name(field.name)
    info = typer.Option(
        flag,
        help=meta["help"] + choices,
        metavar=meta["metavar"] or _METAVARS.get(kind),
        parser=_number_parser(kind, flag, variable) if kind in (int, float) else None,
        callback=None if meta["empty"] else _refuse_empty,
        envvar=[variable, *aliases] if (aliases := ALIASES.get(field.name)) else variable,
        show_envvar=True,
        rich_help_panel=panel,
        show_default=default not in ("", None),
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


_METAVARS = {bool: "", int: "INTEGER", float: "NUMBER", str: "NAME", list[str]: "NAME"}


def _number_parser(kind: type[int] | type[float], flag: str, variable: str) -> Callable[[Any], float]:
    """A parser whose error names the value, and the environment variable if the value comes from it."""

    def parse(value: Any) -> float:
        try:
            return kind(value)
        except ValueError:
            origin = f" ({variable})" if os.environ.get(variable) == value else ""
            name = "whole number" if kind is int else "number"
            message = f"{redact(shown(value))} is not a {name}{origin}"
            raise typer.BadParameter(message, param_hint=f"'{flag}'") from None

    return parse


def _refuse_empty(ctx: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Callback of an option that has no meaning without a text: an empty environment variable is unset."""
    source = ctx.get_parameter_source(parameter.name or "")
    if not value and source is not None and source.name == "COMMANDLINE":
        message = f"'' is empty: give a {parameter.metavar}, or leave the option out"
        raise typer.BadParameter(message, param_hint=f"'{parameter.opts[0]}'")
    return value


# --- config files and the environment ------------------------------------------------------------


def load_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: the values of the file become the defaults of this command's options."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx.info_name or "")}
    return path


def read_config(path: Path, strategy: str) -> dict[str, Any]:
    """The options in a TOML, JSON or YAML file. Raises ConfigError for unknown keys and wrong values."""
    where = f"--config {path}"
    try:
        values = _parse(_read(path), path.suffix)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: it is nested too deeply; it must hold keys and values") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: it must hold keys and values, found a {type(values).__name__}")
    if values.setdefault("strategy", strategy) != strategy:
        found = shown(values["strategy"])
        raise ConfigError(f"{where}: it is for strategy {found}, the command is '{strategy}'")
    RunConfig.from_dict(values, where)
    return {key: value for key, value in values.items() if key != "strategy" and value is not None}


def _read(path: Path) -> str:
    """The text of a file that is no larger than a config may be. Raises OSError, ValueError."""
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise ValueError("it is not a regular file")
    if size > MAX_CONFIG_BYTES:
        raise ValueError(f"it has {size} bytes; a config has at most {MAX_CONFIG_BYTES}")
    return path.read_bytes().decode()


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text, object_pairs_hook=_without_duplicates)
    if suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    raise ValueError(f"its name ends in '{suffix}'; it must end in .toml, .json, .yaml or .yml")


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            _without_duplicates([(str(key.value), value) for key, value in node.value])
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key '{key}' is given twice")
        values[key] = value
    return values


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a ``DPEXP_`` variable that no strategy has an option for."""
    known = {PREFIX + name.upper() for strategy in STRATEGY_OPTIONS for name in option_names(strategy)}
    known |= set(OTHER_VARIABLES)
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in known:
            raise ConfigError(
                f"environment variable {variable} is not an option{did_you_mean(variable, known)}"
            )

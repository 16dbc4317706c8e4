"""Command lines made from config classes: one option a field, one command a strategy.

An option takes its value from the command line, else ``DPEXP_<NAME>``, else the ``--config`` file, else
the field's default. Imports neither torch nor mlflow.
"""

from __future__ import annotations

import dataclasses
import inspect
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
from typer.core import TyperGroup

from dpexp.config import (
    STRATEGY_OPTIONS,
    ConfigError,
    RunConfig,
    did_you_mean,
    flag_name,
    option_fields,
    option_names,
    types_of,
    unknown,
)
from dpexp.config.user_errors import describe
from dpexp.record import JournalError

PREFIX = "DPEXP_"
OTHER_VARIABLES = ("DPEXP_HOME", "DPEXP_PARENT")
"""Variables of the prefix that are no option."""
ALSO_NAMED = {"experiment": ["MLFLOW_EXPERIMENT_NAME"]}
"""Variables of other programs that users expect to work, after our own."""


class Exit(IntEnum):
    """What a command ends with."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_DELIVERED = 3
    INTERRUPTED = 130
    TERMINATED = 143


class Suggesting(TyperGroup):
    """A group whose unknown command names those that there are, and the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(str(unknown("command", args[0], self.commands)))
        return super().resolve_command(ctx, args)


def app(help: str) -> typer.Typer:
    """A Typer app as every script has it: plain help, no completion to install, tracebacks left alone."""
    return typer.Typer(
        cls=Suggesting,
        help=help,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


DEBUG = "--debug"
"""The option that shows an error's traceback: of a mistake in the other options, too."""


def main(app: typer.Typer) -> None:
    """Run the app; what it was given wrong becomes one message on stderr and exit code 2."""
    try:
        app()
    except (ConfigError, JournalError) as error:
        _tell(error, str(error))
        sys.exit(Exit.USAGE)


@contextmanager
def explained() -> Iterator[None]:
    """What nobody foresaw becomes one message and exit code 1, and Ctrl-C one and 130."""
    try:
        yield
    except (ConfigError, JournalError, typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt as error:
        _tell(error, "interrupted")
        raise typer.Exit(Exit.INTERRUPTED) from error
    except (Exception, SystemExit) as error:  # a model's code may call sys.exit
        hint = "" if DEBUG in sys.argv else f"; {DEBUG} shows the traceback"
        _tell(error, f"{describe(error).rstrip('.')}{hint}")
        raise typer.Exit(Exit.FAILED) from error


def _tell(error: BaseException, message: str) -> None:
    if DEBUG in sys.argv:
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    typer.echo(f"error: {message}", err=True)


def options(strategy: str) -> list[inspect.Parameter]:
    """One keyword parameter for each field of the config that the strategy takes, as Typer reads it."""
    return [
        _parameter(cls, field)
        for cls in (STRATEGY_OPTIONS[strategy], RunConfig)
        for field in option_fields(cls)
    ]


def with_options(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """The function with ``**values`` spelled out as these parameters, so that Typer makes them options."""
    own = inspect.signature(function, eval_str=True)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]

    def command(*args: Any, **values: Any) -> None:
        function(*args, **values)

    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature([*named, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in [*named, *parameters]}
    return command


def _parameter(cls: type, field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind, default = types_of(cls)[field.name], field.default
    if isinstance(kind, UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is tuple:
        kind, default = list[str], list(typing.cast("tuple[str, ...]", default))
    meta = field.metadata
    names = [meta["flag"] or flag_name(field.name)]
    text = meta["help"] + (f" One of {', '.join(filter(None, meta['choices']))}." if meta["choices"] else "")
    variable = PREFIX + field.name.upper()
    info = typer.Option(
        *names,
        help=text,
        metavar=meta["metavar"] or _METAVARS.get(kind),
        parser=_number(kind, variable) if kind in _METAVARS else None,
        envvar=[variable, *ALSO_NAMED.get(field.name, [])],
        show_envvar=False,
        show_default=default not in ("", None),
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


_METAVARS = {int: "INTEGER", float: "NUMBER"}


def _number(kind: type[int] | type[float], variable: str) -> Callable[[Any], float]:
    """Reads a number; its error names the value, and the environment's variable if it came from there."""

    def number(value: Any) -> float:
        try:
            return kind(value)
        except ValueError:
            origin = f" ({variable})" if os.environ.get(variable) == value else ""
            what = "whole number" if kind is int else "number"
            raise typer.BadParameter(f"'{value}' is no {what}{origin}") from None

    return number


# --- config files and the environment -----------------------------------------------------------


def read_config(path: Path, strategy: str) -> dict[str, Any]:
    """The options of a TOML, JSON or YAML file, checked: unknown keys and wrong types are ConfigErrors."""
    try:
        values = _parse(path)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"--config {path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: it must hold keys and values, found a {type(values).__name__}")
    named = values.get("strategy", strategy)
    if named != strategy:
        raise ConfigError(f"--config {path}: it is for strategy '{named}', the command says '{strategy}'")
    RunConfig.from_dict({**values, "strategy": strategy}, where=f"--config {path}")
    return {key: value for key, value in values.items() if key != "strategy" and value is not None}


def _parse(path: Path) -> Any:
    text = path.read_bytes().decode()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".json":
        return json.loads(text, object_pairs_hook=_without_duplicates)
    if path.suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    raise ValueError(f"its name ends in '{path.suffix}'; there is .toml, .json, .yaml")


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe, and a key that is there twice is an error: YAML's own loader takes the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            return _without_duplicates(
                [(self.construct_object(k, deep), self.construct_object(v, True)) for k, v in node.value]
            )

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key '{key}' is there twice")
    return dict(pairs)


def use_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: the file's values become the defaults of this command's options."""
    if path is not None:
        strategy = ctx.info_name or ""
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, strategy)}
    return path


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """ConfigError for a ``DPEXP_`` variable that is no option of any strategy: a typing mistake."""
    known = {PREFIX + name.upper() for strategy in STRATEGY_OPTIONS for name in option_names(strategy)}
    known |= set(OTHER_VARIABLES)
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in known:
            raise ConfigError(f"environment variable {variable} is no option{did_you_mean(variable, known)}")

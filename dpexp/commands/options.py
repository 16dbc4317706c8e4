"""The options of a command, made from the config classes: one for each field.

The value of an option comes from the command line, else from ``DPEXP_<NAME>``, else from the ``--config``
file, else from the default of the field.
"""

import dataclasses
import inspect
import json
import os
import tomllib
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

import typer

from dpexp.config.errors import ConfigError
from dpexp.config.options import flag_name, option_fields, types_of
from dpexp.config.process import command
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_options import STRATEGY_OPTIONS, RankOptions
from dpexp.config.words import did_you_mean, shown

_PREFIX = "DPEXP_"
OTHER_VARIABLES = ("DPEXP_HOME", "DPEXP_PARENT")
"""Environment variables with the prefix that do not set an option."""
VARIABLES = {"experiment": ["DPEXP_EXPERIMENT", "MLFLOW_EXPERIMENT_NAME"]}
"""The environment variables of an option that has others than ``DPEXP_<NAME>``, the first one first."""


def with_options(function: Callable[..., None], strategy: str) -> Callable[..., None]:
    """Give the function a parameter for each option of the strategy in place of ``**values``, for Typer.

    They stand in the order of the panels of the help.
    """
    own = f"Options of {strategy}"
    found = [*_parameters(STRATEGY_OPTIONS[strategy], own), *_shared()]
    order = [own, *PANELS]
    found.sort(key=lambda each: order.index(each.default.rich_help_panel))
    signature = inspect.signature(function, eval_str=True)
    given = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    output = [p.replace(kind=p.KEYWORD_ONLY) for p in given]
    function.__signature__ = inspect.Signature([*found, *output])  # type: ignore[attr-defined]
    return function


def with_shared_options(function: Callable[..., None], names: Collection[str]) -> Callable[..., None]:
    """Give the function a parameter for each of these options of all strategies in place of ``**values``."""
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    found = [each for each in _parameters(RunConfig) if each.name in names]
    function.__signature__ = inspect.Signature([*own, *found])  # type: ignore[attr-defined]
    return function


@cache
def _shared() -> list[inspect.Parameter]:
    return _parameters(RunConfig)


def _parameters(cls: type, own_panel: str = "") -> list[inspect.Parameter]:
    panels = {name: panel for panel, names in PANELS.items() for name in names}
    types = types_of(cls)
    return [
        _parameter(types[field.name], field, panels.get(field.name, own_panel))
        for field in option_fields(cls)
    ]


def _parameter(kind: Any, field: dataclasses.Field[Any], panel: str) -> inspect.Parameter:
    meta, default = field.metadata, field.default
    if isinstance(kind, UnionType):
        kind = next(member for member in typing.get_args(kind) if member is not type(None))
    if typing.get_origin(kind) is tuple:
        kind, default = list[str], list(typing.cast("tuple[str, ...]", default))
    choices = f" One of {', '.join(filter(None, meta['choices']))}." if meta["choices"] else ""
    info = typer.Option(
        default,
        meta["flag"] or flag_name(field.name),
        help=meta["help"] + choices,
        metavar=meta["metavar"] or _METAVARS.get(kind),
        envvar=VARIABLES.get(field.name, _PREFIX + field.name.upper()),
        show_envvar=True,
        rich_help_panel=panel,
        show_default=default not in ("", None),
    )
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


_METAVARS = {bool: "", int: "INTEGER", float: "NUMBER", str: "NAME", list[str]: "NAME"}


# --- config files and the environment ------------------------------------------------------------


def load_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: the values of the file become the defaults of this command's options."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx.command.name or "")}
    return path


def read_config(path: Path, strategy: str) -> dict[str, Any]:
    """The options in a TOML or JSON file. Raises ConfigError for unknown keys and wrong values."""
    where = f"--config {path}"
    loaders: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in loaders:
        raise ConfigError(f"{where}: its name ends in '{path.suffix}', not in {', '.join(loaders)}")
    try:
        values = loaders[path.suffix](path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: it must hold keys and values, found a {type(values).__name__}")
    if values.setdefault("strategy", strategy) != strategy:
        found = shown(values["strategy"])
        raise ConfigError(f"{where}: it is for strategy {found}, the command is '{strategy}'")
    RunConfig.from_dict(values, where)
    return {key: value for key, value in values.items() if key != "strategy" and value is not None}


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a ``DPEXP_`` variable that no strategy has an option for."""
    known = {_PREFIX + name.upper() for strategy in STRATEGY_OPTIONS for name in option_names(strategy)}
    known |= set(OTHER_VARIABLES)
    for variable in environ:
        if variable.startswith(_PREFIX) and variable not in known:
            raise ConfigError(
                f"environment variable {variable} is not an option{did_you_mean(variable, known)}"
            )


# --- panels and examples of the help -------------------------------------------------------------

OUTPUT = "Output"
RANKS = [field.name for field in option_fields(RankOptions)]
PANELS: dict[str, list[str]] = {
    "Model and data": [
        *("model", "data", "loss", "metrics", "validation", "reduction", "batch_size", "optimizer", "lr"),
        *("clip_norm", "accumulate", "dtype", "autocast", "seed", "eval"),
    ],
    "Devices and layout": ["devices", "virtual", "backend", "checkpoint", "threads", *RANKS],
    "Measuring": ["steps", "epochs", "warmup", "phase_steps", "profile", "check"],
    "Tracking": ["track", "track_timeout", "experiment", "run_name"],
}
"""The options of several strategies, by panel, in the order of the help; the rest are a strategy's own."""


def examples(app: str, *lines: str) -> str:
    """The end of a command's help: these words after the name of the app, a paragraph each, and variables."""
    program = command(app)
    shown = (f"{program} {line}".strip() for line in lines)
    variables = "DPEXP_HOME (the folder of the runs), MLFLOW_TRACKING_URI (the store or server of MLflow)"
    return "\n\n".join(["Examples:", *shown, f"Environment: {variables}"])

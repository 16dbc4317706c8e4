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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any

import typer

from dpexp.config.errors import ConfigError, did_you_mean, shown
from dpexp.config.options import flag_name, option_fields, types_of
from dpexp.config.process import command
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_options import STRATEGY_OPTIONS, LaunchOptions

_PREFIX = "DPEXP_"
OTHER_VARIABLES = ("DPEXP_HOME", "DPEXP_PARENT")
"""Environment variables with the prefix that do not set an option."""
ALIASES = {"experiment": ["MLFLOW_EXPERIMENT_NAME"]}
"""Environment variables of other programs that set an option where ``DPEXP_<NAME>`` does not."""


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
    choices = f" One of {', '.join(filter(None, meta['choices']))}." if meta["choices"] else ""
    variable, flag = _PREFIX + field.name.upper(), meta["flag"] or flag_name(field.name)
    info = typer.Option(
        flag,
        help=meta["help"] + choices,
        metavar=meta["metavar"] or _METAVARS.get(kind),
        envvar=[variable, *aliases] if (aliases := ALIASES.get(field.name)) else variable,
        show_envvar=True,
        rich_help_panel=panel,
        show_default=default not in ("", None),
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


_METAVARS = {bool: "", int: "INTEGER", float: "NUMBER", str: "NAME", list[str]: "NAME"}


# --- config files and the environment ------------------------------------------------------------


def load_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: the values of the file become the defaults of this command's options."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(path, ctx.info_name or "")}
    return path


def read_config(path: Path, strategy: str) -> dict[str, Any]:
    """The options in a TOML, JSON or YAML file. Raises ConfigError for unknown keys and wrong values."""
    where = f"--config {path}"
    loaders: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
    }
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


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for a ``DPEXP_`` variable that no strategy has an option for."""
    known = {_PREFIX + name.upper() for strategy in STRATEGY_OPTIONS for name in option_names(strategy)}
    known |= set(OTHER_VARIABLES)
    for variable in environ:
        if variable.startswith(_PREFIX) and variable not in known:
            raise ConfigError(
                f"environment variable {variable} is not an option{did_you_mean(variable, known)}"
            )


OUTPUT = "Output"
WORK = (
    "model",
    "data",
    "loss",
    "metrics",
    "validation",
    "reduction",
    "batch_size",
    "optimizer",
    "lr",
    "clip_norm",
    "accumulate",
    "dtype",
    "autocast",
    "compile",
)
RANKS = tuple(field.name for field in option_fields(LaunchOptions))
PANELS: dict[str, tuple[str, ...]] = {
    "Model and data": (*WORK, "seed", "eval"),
    "Devices and layout": ("devices", "virtual", "backend", "threads", *RANKS),
    "Measuring": ("steps", "epochs", "warmup", "phase_steps", "profile", "check"),
    "Tracking": ("track", "track_timeout", "experiment", "run_name"),
}
"""The options that several strategies have, by panel, in the order of the help."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run models": ("", "--json"),
    "runs list": ("-n 10", "--json"),
    "runs show": ("last", "last --full"),
    "runs sync": ("", "last"),
    "runs reproduce": ("last", "record.json --trust"),
    "runs remove": ("last", "last --yes"),
    "sweep": ("experiments/why_slower --resume", "whole --virtual 1,2,4 --dry-run"),
    "report": ("", "last --out compared"),
    "ui": ("", "--port 5001"),
}
"""Two examples of the options of each other command; ``{}`` stands for the command where it is not first."""

_VARIABLES = ("DPEXP_HOME (the folder of the runs)", "MLFLOW_TRACKING_URI (the store or server of MLflow)")


def panels(strategy: str) -> list[str]:
    """The titles of the panels, in order: the strategy's own options first."""
    return [_own(strategy), *PANELS]


def panel_of(name: str, strategy: str) -> str:
    """The title of the panel of an option; an option that stands in no other is the strategy's own."""
    return next((panel for panel, names in PANELS.items() if name in names), _own(strategy))


def _own(strategy: str) -> str:
    return f"Options of {strategy}"


def examples(strategy: str) -> str:
    """The examples of a strategy's command, for the end of its help."""
    return _paragraphs(f"{command('run')} {strategy}", STRATEGY_OPTIONS[strategy].examples)


def epilog(name: str) -> str:
    """The end of the help of a command such as ``runs list``: its examples and environment variables."""
    app, _, subcommand = name.partition(" ")
    examples = _paragraphs(f"{command(app)} {subcommand}".strip(), COMMANDS[name])
    return f"{examples}\n\nEnvironment: {', '.join(_VARIABLES)}"


def _paragraphs(program: str, lines: Iterable[str]) -> str:
    """A paragraph for each example: a help joins the lines of one."""
    found = (line if "{}" in line else f"{{}} {line}" for line in lines)
    return "\n\n".join(["Examples:", *(line.format(program).strip() for line in found)])

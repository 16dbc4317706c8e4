"""Help panels: under which title ``--help`` shows an option, and examples of every command."""

from collections.abc import Iterable

from dpexp.config.options import option_fields
from dpexp.config.process import command
from dpexp.config.strategy_options import STRATEGY_OPTIONS, LaunchOptions

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
    "run models": ("", "cnn --data digits"),
    "runs list": ("-n 10", "--json"),
    "runs show": ("last", "last --full"),
    "runs sync": ("", "last"),
    "runs reproduce": ("last --runs 5", "record.json --exact"),
    "runs remove": ("last", "last --yes"),
    "sweep": ("experiments/why_slower --resume", "whole --virtual 1,2,4 --dry-run"),
    "report": ("", "last --out compared"),
    "ui": ("", "--port 5001"),
}
"""Two examples of the options of each other command; ``{}`` stands for the command where it is not first."""

_VARIABLES = {
    "DPEXP_HOME": "the folder of the runs",
    "MLFLOW_TRACKING_URI": "the store or server of MLflow",
}
WITHOUT_VARIABLES = {"run models": tuple(_VARIABLES), "report": ("MLFLOW_TRACKING_URI",)}
"""The environment variables that a command does not read."""


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
    unread = WITHOUT_VARIABLES.get(name, ())
    read = [f"{variable} ({what})" for variable, what in _VARIABLES.items() if variable not in unread]
    environment = [f"Environment: {', '.join(read)}"] if read else []
    return "\n\n".join([_paragraphs(f"{command(app)} {subcommand}".strip(), COMMANDS[name]), *environment])


def _paragraphs(program: str, lines: Iterable[str]) -> str:
    """A paragraph for each example: a help joins the lines of one."""
    found = (line if "{}" in line else f"{{}} {line}" for line in lines)
    return "\n\n".join(["Examples:", *(line.format(program).strip() for line in found)])

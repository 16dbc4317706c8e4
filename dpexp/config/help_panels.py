"""Help panels: under which title ``--help`` shows an option, and examples of each strategy's command."""

from dpexp.config.options import option_fields
from dpexp.config.strategy_options import LaunchOptions

OUTPUT = "Output"
WORK = (
    "model",
    "data",
    "loss",
    "reduction",
    "batch_size",
    "optimizer",
    "lr",
    "clip_norm",
    "dtype",
    "autocast",
    "compile",
)
RANKS = tuple(field.name for field in option_fields(LaunchOptions))
PANELS: dict[str, tuple[str, ...]] = {
    "Model and data": (*WORK, "seed", "eval"),
    "Devices and layout": ("devices", "virtual", "backend", "threads", *RANKS),
    "Measuring": ("steps", "epochs", "warmup", "phase_steps", "check"),
    "Tracking": ("track", "track_timeout", "experiment", "run_name"),
}
"""The options that several strategies have, by panel, in the order of the help."""

EXAMPLES: dict[str, tuple[str, str]] = {
    "single": ("--devices cpu --steps 500", "--model cnn --data digits --epochs 2"),
    "whole": ("--virtual 3", "--devices cuda:0,cuda:1 --batch-size 256"),
    "block": ("--virtual 2 --block block2", "--virtual 2 --model transformer --block encoder"),
    "functional": ("--virtual 3", "--virtual 2 --model mlp --data digits"),
    "hybrid": ("--virtual 1 --sparse", "--virtual 1 --data text:README.md --lr 1"),
    "place": ("--place block1=cpu:0 --place block2=cpu:1 --virtual 2", "--place 'block*=cuda:0' --dry-run"),
    "ddp": ("--devices 2", "--devices 4 --snapshot-every 100"),
    "fsdp": ("--devices 2", "--devices 2 --model transformer --block encoder"),
    "custom": (
        "--layout layout.py:parallelize --mesh dp=2,tp=2",
        "--layout layout.py:parallelize --virtual 2",
    ),
}
"""Two examples of the options of each strategy."""


def panels(strategy: str) -> list[str]:
    """The titles of the panels, in order: the strategy's own options first."""
    return [_own(strategy), *PANELS]


def panel_of(name: str, strategy: str) -> str:
    """The title of the panel of an option; an option that stands in no other is the strategy's own."""
    return next((panel for panel, names in PANELS.items() if name in names), _own(strategy))


def _own(strategy: str) -> str:
    return f"Options of {strategy}"

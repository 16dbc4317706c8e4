"""Config: what the user asked for, checked before anything is imported or written.

``run_config`` is the complete configuration of a run and ``strategy_options`` the options of each strategy;
start there. ``options`` makes fields into command-line options, ``spec`` parses ``--model`` and ``--data``,
``user_errors`` describes errors in code that is not ours, ``home`` is ``DPEXP_HOME``.
Every room may import this one; it imports no other, and not torch.
"""

from dpexp.config.errors import ConfigError, did_you_mean, unknown
from dpexp.config.home import home
from dpexp.config.options import flag_name, option, option_fields, types_of
from dpexp.config.run_config import DTYPES, RunConfig, option_names
from dpexp.config.strategy_options import (
    REFERENCE,
    STRATEGY_HELP,
    STRATEGY_OPTIONS,
    BlockOptions,
    DdpOptions,
    FsdpOptions,
    HybridOptions,
    LaunchOptions,
    PlaceOptions,
    RankOptions,
    StrategyOptions,
)

__all__ = [
    "DTYPES",
    "REFERENCE",
    "STRATEGY_HELP",
    "STRATEGY_OPTIONS",
    "BlockOptions",
    "ConfigError",
    "DdpOptions",
    "FsdpOptions",
    "HybridOptions",
    "LaunchOptions",
    "PlaceOptions",
    "RankOptions",
    "RunConfig",
    "StrategyOptions",
    "did_you_mean",
    "flag_name",
    "home",
    "option",
    "option_fields",
    "option_names",
    "types_of",
    "unknown",
]

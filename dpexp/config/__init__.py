"""Config: the configuration of a run, validated before torch is imported or a file is written.

Start with ``run_config``, the complete configuration, and ``strategy_options``, the options of each strategy.
``options`` makes command-line options of fields, ``spec`` parses ``--model`` and ``--data``, ``errors``
describes errors in user code, ``process`` has ``DPEXP_HOME``.
Every room may import this one; it imports no other room and not torch.
"""

from dpexp.config.errors import ConfigError, did_you_mean, unknown
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, option_names, options_with_role
from dpexp.config.strategy_options import (
    REFERENCE,
    STRATEGY_HELP,
    STRATEGY_OPTIONS,
    BlockOptions,
    CustomOptions,
    DataParallelOptions,
    DdpOptions,
    FsdpOptions,
    HybridOptions,
    LaunchOptions,
    PlaceOptions,
    RankOptions,
    StrategyOptions,
)

__all__ = [
    "REFERENCE",
    "STRATEGY_HELP",
    "STRATEGY_OPTIONS",
    "BlockOptions",
    "ConfigError",
    "CustomOptions",
    "DataParallelOptions",
    "DdpOptions",
    "FsdpOptions",
    "HybridOptions",
    "LaunchOptions",
    "PlaceOptions",
    "RankOptions",
    "RunConfig",
    "StrategyOptions",
    "did_you_mean",
    "home",
    "option_names",
    "options_with_role",
    "unknown",
]

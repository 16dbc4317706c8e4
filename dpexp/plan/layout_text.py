"""The text of a layout: a strategy with its options, as on the command line of a run.

fsdp --block layers.* --checkpoint
"""

from __future__ import annotations

import argparse
import shlex
import typing
from collections.abc import Mapping
from typing import Any, NoReturn

from dpexp.config.errors import ConfigError, unknown
from dpexp.config.options import flag_name, option_fields, types_of
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS

OF_STEP = ("checkpoint", "dtype", "autocast", "accumulate", "batch_size", "optimizer", "clip_norm", "eval")
"""The options of a run that one layout may have for itself: those that change what a step needs."""


def config_of(text: str, shared: Mapping[str, Any]) -> RunConfig:
    """The config of a layout, whose own options come before those that all share. Raises ConfigError."""
    try:
        name, *rest = shlex.split(text) or [""]
    except ValueError as error:
        raise ConfigError(f"layout '{text}': {error}") from error
    if name not in STRATEGY_OPTIONS:
        raise unknown("strategy", name, STRATEGY_OPTIONS)
    parser = _Parser(text, argument_default=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    for cls in (STRATEGY_OPTIONS[name], RunConfig):
        types = types_of(cls)
        for field in option_fields(cls):
            if cls is not RunConfig or field.name in OF_STEP:
                _add(parser, field.name, field.metadata["flag"], types[field.name])
    return RunConfig.from_dict({"strategy": name, **shared, **vars(parser.parse_args(rest))}, where=text)


def _add(parser: argparse.ArgumentParser, name: str, flag: str | None, kind: Any) -> None:
    if kind is bool:
        on, _, off = (flag or flag_name(name)).partition("/")
        parser.add_argument(on, dest=name, action="store_true")
        if off:
            parser.add_argument(off, dest=name, action="store_false")
    elif typing.get_origin(kind) is tuple:
        parser.add_argument(flag_name(name), dest=name, action="append")
    else:
        plain = next((each for each in typing.get_args(kind) or (kind,) if each is not type(None)), str)
        parser.add_argument(flag_name(name), dest=name, type=plain)


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"layout '{self.prog}': {message}")

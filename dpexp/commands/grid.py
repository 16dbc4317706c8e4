"""Grid: the words of ``sweep STRATEGY... --OPTION value,value`` as options of the command ``run``.

A value splits at its commas, unless it has ``:`` or ``=``, as ``linear:in=5,out=2`` has: then an option is
repeated for several values. A flag, as ``--sparse``, is a value of its own: ``--sparse --dense`` are two.
Where one run takes an option several times, ``+`` joins: ``--block block1+block2`` is one value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from dpexp.commands import run
from dpexp.config.errors import ConfigError, did_you_mean, unknown
from dpexp.config.process import command
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_options import REFERENCE, STRATEGY_OPTIONS
from dpexp.study.grid import Axes, Grid, grid

OF_THE_SWEEP = frozenset({"run_name", "track", "track_timeout"})
"""Options that a sweep sets for its runs."""


def parse(words: Sequence[str], own: Sequence[str], repeats: int) -> Grid:
    """The grid of a command line; ``own`` are the options of the command ``sweep``. Raises ConfigError."""
    return grid(parse_axes(words, own), _config, repeats)


def parse_axes(words: Sequence[str], own: Sequence[str]) -> dict[str, Axes]:
    """The values of each option, for each strategy that has it. Raises ConfigError."""
    strategies, values = _split(words, own)
    if not strategies:
        raise ConfigError(f"name a strategy to sweep: {', '.join(STRATEGY_OPTIONS)}")
    axes: dict[str, Axes] = {}
    for strategy in dict.fromkeys(strategies):
        if strategy not in STRATEGY_OPTIONS:
            raise unknown("strategy", strategy, STRATEGY_OPTIONS)
        has = {option for _, option in _flags(strategy)}
        axes[strategy] = {name: [*found] for name, found in values.items() if name in has}
    if REFERENCE in axes and len(axes) > 1:
        axes[REFERENCE] = _on_one_device(axes[REFERENCE])
    known = {flag for strategy in axes for flag, _ in _flags(strategy)}
    for name, found in values.items():
        if not any(name in of_strategy for of_strategy in axes.values()):
            raise _unknown(next(iter(found))[0], [*known, *own], f"{' '.join(axes)}: ")
    if len(values.get("experiment", ())) > 1:
        raise ConfigError("--experiment: the runs of a sweep are in one experiment: give one name")
    return axes


def _on_one_device(axes: Axes) -> Axes:
    """The same values on the first of their devices, of the same kind: the baseline of the other strategies.

    One emulated device is ranked with several, and a real one is not.
    """
    found: dict[str, list[tuple[str, ...]]] = {}
    for option, values in axes.items():
        found[option] = [*values]
        if option in ("virtual", "devices"):
            firsts = [(flag, "1" if value.isdecimal() else value.split(",")[0]) for flag, value in values]
            of_kind = {name.partition(":")[0]: (flag, name) for flag, name in reversed(firsts)}
            found[option] = [*reversed(of_kind.values())]
    return found


def _split(
    words: Sequence[str], own: Sequence[str]
) -> tuple[list[str], dict[str, dict[tuple[str, ...], None]]]:
    """(strategies, {option: the words of each value, once}). Raises ConfigError."""
    flags = {flag: (strategy, name) for strategy in STRATEGY_OPTIONS for flag, name in _flags(strategy)}
    strategies: list[str] = []
    values: dict[str, dict[tuple[str, ...], None]] = {}
    remaining = iter(words)
    for word in remaining:
        if not word.startswith("-"):
            strategies.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag not in flags:
            raise _unknown(flag, [*flags, *own])
        strategy, name = flags[flag]
        found = values.setdefault(name, {})
        parameter = next(one for one in _command(strategy).params if one.name == name)
        if parameter.is_flag:
            found[(flag,)] = None
            continue
        text = value if equals else next(remaining, None)
        if text is None:
            raise ConfigError(f"{flag} needs a value")
        for part in [text] if ":" in text or "=" in text else text.split(","):
            together = part.split("+") if parameter.multiple else [part]
            found[tuple(itertools.chain.from_iterable((flag, one) for one in together))] = None
    return strategies, values


def _unknown(flag: str, known: Sequence[str], where: str = "") -> ConfigError:
    hint = f"{command('sweep')} --help and {command('run')} STRATEGY --help list the options"
    return ConfigError(f"{where}unknown option '{flag}'; {hint}{did_you_mean(flag, known)}")


def _flags(strategy: str) -> Iterator[tuple[str, str]]:
    """(flag, option) of each option of a strategy's command that a sweep may set."""
    allowed = {*option_names(strategy), "config_file"} - OF_THE_SWEEP
    for parameter in _command(strategy).params:
        if parameter.name in allowed:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                yield flag, parameter.name


def _command(strategy: str) -> Any:
    """The command of a strategy."""
    return _run_group().commands[strategy]


@cache
def _run_group() -> Any:
    return typer.main.get_command(run.app)


def _config(strategy: str, words: Sequence[str]) -> RunConfig:
    """The config of a run with these options: as ``run`` makes it, from environment and files as well."""
    try:
        context = _command(strategy).make_context(strategy, list(words))
    except typer.BadParameter as error:
        raise ConfigError(error.format_message()) from None
    known = option_names(strategy)
    values = {name: value for name, value in context.params.items() if name in known}
    return RunConfig.from_dict({"strategy": strategy, **values, "run_name": ""}, where="")

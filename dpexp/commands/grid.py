"""Grid: ``sweep STRATEGY... --OPTION value,value`` as a plan: a cell for each combination of the values.

::

    whole single --virtual 1,2  ->  whole-virtual_1   whole-virtual_2   single
                                    (with --virtual 1: the baseline of both)

A value splits at its commas, unless it has ``:`` or ``=``, as ``linear:in=5,out=2`` has: then an option is
repeated for several values. A flag, as ``--sparse``, is a value of its own: ``--sparse --dense`` are two.
Where one run takes an option several times, ``+`` joins: ``--block block1+block2`` is one value.

A combination that its strategy refuses is left out. A value that no cell accepts is an error, and so is a
grid without cells.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from typing import Any

import typer

from dpexp.commands import run
from dpexp.config.errors import ConfigError, as_config_error, unknown
from dpexp.config.process import command
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_options import REFERENCE, STRATEGY_OPTIONS
from dpexp.config.words import did_you_mean
from dpexp.study.records import Plan

OF_THE_SWEEP = frozenset({"run_name", "track", "track_timeout"})
"""Options that a sweep sets for its runs."""
_MAX_CELL = 150
Value = tuple[str, ...]
"""The words of one value: ``("--virtual", "2")``, ``("--sparse",)``."""


def plan_of(words: Sequence[str], repeats: int) -> tuple[Plan, list[str]]:
    """The plan of a command line, and what it leaves out, one combination for each reason.

    Every combination is built, and none runs. Raises ConfigError.
    """
    strategies, values_of = _split(words)
    axes = _axes(strategies, values_of)
    runs: dict[str, RunConfig] = {}
    usable = set[Value]()
    refused: list[tuple[str, tuple[Value, ...], str]] = []
    for strategy, options in axes.items():
        for values in itertools.product(*options.values()):
            try:
                config = _built(strategy, values)
            except ConfigError as error:
                refused.append((strategy, values, str(error)))
                continue
            usable.update(values)
            name = _cell(strategy, [value for value in values if [value] not in options.values()])
            numbered = (f"{name}-{number}" for number in itertools.count(2))
            unique = next(one for one in itertools.chain([name], numbered) if one not in runs)
            runs[unique] = replace(config, track=False)  # the sweep delivers its runs
    left_out: dict[tuple[str, str], str] = {}
    for strategy, values, reason in refused:
        message = f"{shlex.join([strategy, *itertools.chain(*values)])}: {reason}"
        if not runs or not usable.issuperset(values):
            raise ConfigError(message)
        left_out.setdefault((strategy, reason), message)
    every = [word for several in values_of.values() for value in several for word in value]
    experiment = next(iter(runs.values())).experiment
    return Plan(experiment, shlex.join([*axes, *every]), runs, repeats), [*left_out.values()]


def _cell(strategy: str, varying: Iterable[Value]) -> str:
    """``whole-virtual_2``: the name of a cell, from the values of the options that have several."""
    slugs = (re.sub(r"[^A-Za-z0-9]+", "_", " ".join(value)).strip("_") for value in varying)
    return "-".join([strategy, *slugs])[:_MAX_CELL]


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, list[Value]]]:
    """(strategies, {option: its values, each once}). Raises ConfigError."""
    known = {flag: option for strategy in STRATEGY_OPTIONS for flag, option in _options(strategy).items()}
    strategies: dict[str, None] = {}
    values: dict[str, dict[Value, None]] = {}
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            strategies[word] = None
            continue
        if flag not in known:
            raise _unknown(flag, known)
        option = known[flag]
        of_option = values.setdefault(option.name, {})
        if option.is_flag:
            of_option[(flag,)] = None
            continue
        text = value if equals else next(remaining, None)
        if text is None:
            raise ConfigError(f"{flag} needs a value")
        for part in [text] if ":" in text or "=" in text else text.split(","):
            together = part.split("+") if option.multiple else [part]
            of_option[tuple(itertools.chain.from_iterable((flag, one) for one in together))] = None
    return [*strategies], {name: [*of_option] for name, of_option in values.items()}


def _axes(strategies: list[str], values: Mapping[str, list[Value]]) -> dict[str, dict[str, list[Value]]]:
    """The values of each option, for each strategy that has it. Raises ConfigError."""
    if not strategies:
        raise ConfigError(f"name a strategy to sweep: {', '.join(STRATEGY_OPTIONS)}")
    if len(values.get("experiment", ())) > 1:
        raise ConfigError("--experiment: the runs of a sweep are in one experiment: give one name")
    axes, known = {}, dict[str, Any]()
    for strategy in strategies:
        if strategy not in STRATEGY_OPTIONS:
            raise unknown("strategy", strategy, STRATEGY_OPTIONS)
        known |= _options(strategy)
        has = {option.name for option in _options(strategy).values()}
        axes[strategy] = {name: several for name, several in values.items() if name in has}
    for name, several in values.items():
        if not any(name in of_strategy for of_strategy in axes.values()):
            raise _unknown(several[0][0], known, f"{' '.join(axes)}: ")
    if REFERENCE in axes and len(axes) > 1:
        axes[REFERENCE] = {name: _on_one_device(name, several) for name, several in axes[REFERENCE].items()}
    return axes


def _on_one_device(option: str, values: list[Value]) -> list[Value]:
    """The same values on the first of their devices, of the same kind: the baseline of the other strategies.

    One emulated device is ranked with several, and a real one is not.
    """
    if option not in ("virtual", "devices"):
        return values
    firsts = [(flag, "1" if value.isdecimal() else value.split(",")[0]) for flag, value in values]
    return [*{name.partition(":")[0]: (flag, name) for flag, name in firsts}.values()]


def _unknown(flag: str, known: Iterable[str], where: str = "") -> ConfigError:
    hint = f"{command('sweep')} --help and {command('run')} STRATEGY --help list the options"
    return ConfigError(f"{where}unknown option '{flag}'; {hint}{did_you_mean(flag, known)}")


@cache
def _commands() -> dict[str, Any]:
    return typer.main.get_command(run.app).commands  # type: ignore[attr-defined, no-any-return]


def _options(strategy: str) -> dict[str, Any]:
    """{flag: option} of a strategy's command, those that a sweep may set."""
    allowed = {*option_names(strategy)} - OF_THE_SWEEP
    options = [option for option in _commands()[strategy].params if option.name in allowed]
    return {flag: option for option in options for flag in (*option.opts, *option.secondary_opts)}


def _built(strategy: str, values: Iterable[Value]) -> RunConfig:
    """The config of a run, as ``run`` makes it, from environment and files as well; its start is tried.

    Raises ConfigError.
    """
    from dpexp.engine.prepare import prepare  # imports torch
    from dpexp.engine.run_globals import run_globals

    try:
        context = _commands()[strategy].make_context(strategy, [*itertools.chain(*values)])
    except typer.BadParameter as error:
        raise ConfigError(error.format_message()) from None
    given = {name: context.params[name] for name in option_names(strategy)}
    config = RunConfig.from_dict({"strategy": strategy, **given, "run_name": ""}, where="")
    with as_config_error("the start of the run"), redirect_stdout(sys.stderr), run_globals(config):
        prepared = prepare(config)
    return replace(config, batch_size=prepared.batch_size)

"""Grid: an experiment from a command line, with a cell for each combination of its options' values.

::

    whole single --virtual 1,2  ->  whole-virtual_1   whole-virtual_2   single
                                    (with --virtual 1: the baseline of both)

A combination that its strategy refuses is left out. A value that no cell accepts is an error, and so is a
grid without cells.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.config.errors import ConfigError, as_config_error
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Experiment

Axes = Mapping[str, Sequence[tuple[str, ...]]]
"""{option: the words of each of its values}: ``{"virtual": [("--virtual", "1"), ("--virtual", "2")]}``."""
ConfigOf = Callable[[str, Sequence[str]], RunConfig]
"""The config of a strategy's run with these words as its options. Raises ConfigError."""
_MAX_CELL = 150


@dataclass(frozen=True)
class Grid(Experiment):
    """An experiment without a folder and without claims; its question is the command line's words.

    ``left_out`` are combinations that their strategy refuses, one for each reason.
    """

    experiment_name: str = ""
    left_out: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.experiment_name

    @property
    def title(self) -> str:
        return self.question


@dataclass(frozen=True)
class Combination:
    """A strategy and one value for each of its options."""

    strategy: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def words(self) -> list[str]:
        return [*itertools.chain.from_iterable(self.values.values())]

    def refused(self, reason: str) -> str:
        return f"{shlex.join([self.strategy, *self.words])}: {reason}"

    def cell(self, varying: Sequence[str]) -> str:
        """``whole-virtual_2``: the name of its cell, from the options that have several values."""
        values = (" ".join(words) for option, words in self.values.items() if option in varying)
        slugs = (re.sub(r"[^A-Za-z0-9]+", "_", value).strip("_") for value in values)
        return "-".join([self.strategy, *slugs])[:_MAX_CELL]


def combinations(axes: Mapping[str, Axes]) -> Iterator[Combination]:
    """Every combination of the values of each strategy, one after the other."""
    for strategy, options in axes.items():
        for values in itertools.product(*options.values()):
            yield Combination(strategy, dict(zip(options, values, strict=True)))


def grid(axes: Mapping[str, Axes], config_of: ConfigOf, repeats: int) -> Grid:
    """The grid of these strategies, with the options of each. Every combination is built, and none runs.

    Raises ConfigError for a value that every combination with it refuses.
    """
    accepted: list[tuple[Combination, RunConfig]] = []
    refused: list[tuple[Combination, str]] = []
    for combination in combinations(axes):
        try:
            config = config_of(combination.strategy, combination.words)
            _build(config)
            accepted.append((combination, config))
        except ConfigError as error:
            refused.append((combination, str(error)))
    _check_values([combination for combination, _ in accepted], refused)
    runs: dict[str, RunConfig] = {}
    for combination, config in accepted:
        varying = [option for option, values in axes[combination.strategy].items() if len(values) > 1]
        name = combination.cell(varying)
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        unique = next(one for one in itertools.chain([name], numbered) if one not in runs)
        runs[unique] = replace(config, track=False)  # the sweep delivers its runs
    left_out = {(each.strategy, why): each.refused(why) for each, why in reversed(refused)}
    question, name = _question(axes), accepted[0][1].experiment
    return Grid(Path(), question, runs, (), "", (), None, repeats, {}, name, tuple(left_out.values()))


def _build(config: RunConfig) -> None:
    """Build what a run of this config would begin with. Raises ConfigError."""
    from dpexp.engine.prepare import prepare

    with as_config_error("the start of the run"), redirect_stdout(sys.stderr):
        prepare(config).release()


def _check_values(accepted: Sequence[Combination], refused: Sequence[tuple[Combination, str]]) -> None:
    """Raises ConfigError with the reason for the first value that no combination accepts."""
    usable = {words for one in accepted for words in one.values.values()}
    for combination, reason in refused:
        if not accepted or not usable.issuperset(combination.values.values()):
            raise ConfigError(combination.refused(reason))


def _question(axes: Mapping[str, Axes]) -> str:
    """The command line's words, each option once with all of its values."""
    options = {option: values for axes_of in axes.values() for option, values in axes_of.items()}
    words = [[*value] for values in options.values() for value in values]
    return shlex.join([*axes, *itertools.chain.from_iterable(words)])

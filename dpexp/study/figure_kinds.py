"""The kinds of figures that an experiment may have, as its ``config.py`` names them: drawn by ``figure``."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bars:
    """A bar for each cell: the metric's median, and a dot for each round.

    ``cells`` is {cell: its label}.
    """

    title: str
    metric: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Lines:
    """The metric over x: ``series`` is {label: {x: cell}}. With ``against``, its ratio to that cell.

    In ``metric``, ``{}`` stands for the label: each line may show another figure of the same cells.
    """

    title: str
    metric: str
    x: str
    series: Mapping[str, Mapping[float, str]]
    against: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    y: str = ""


ExperimentFigure = Bars | Lines

"""The kinds of figures that an experiment may have, as its ``config.py`` names them: drawn by ``figure``."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bars:
    """A bar for each cell: the metric's median, and a dot for each round.

    ``cells`` is {cell: its label}, as in all figures; ``limits`` is {label: value}, drawn as lines.
    """

    title: str
    metric: str
    cells: Mapping[str, str]
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Dots:
    """The metric on a logarithmic axis: ``rows`` is {row: {series: cell}}. Zero is drawn at ``floor``."""

    title: str
    metric: str
    rows: Mapping[str, Mapping[str, str]]
    limits: Mapping[str, float] = field(default_factory=dict)
    floor: float = 1e-17


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


@dataclass(frozen=True)
class Splits:
    """How batches are split: rows per device, for the full batch and the last one of the epoch."""

    title: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Curves:
    """The loss over the number of trained samples, a line for each cell, averaged over ``window`` samples."""

    title: str
    cells: Mapping[str, str]
    window: int


ExperimentFigure = Bars | Dots | Lines | Splits | Curves

"""Layouts with the models that they are tried with.

    ddp = tried("net text", lambda model, mesh: DistributedDataParallel(model))

is a function ``(model, mesh)``, or ``(model, devices)`` without ranks, that is also a row of a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

FOLDER = "experiments/public_layouts/layouts"


@dataclass(frozen=True)
class Tried:
    """The models by name, the ranks as of ``--mesh``, and further options of the run."""

    models: tuple[str, ...]
    mesh: str
    options: dict[str, Any]


def tried(models: str, function: Callable[..., Any] | None = None, mesh: str = "dp=2", **options: Any) -> Any:
    """The function with what it is tried with; without a function a decorator."""
    if function is None:
        return partial(tried, models, mesh=mesh, **options)
    function.tried = Tried(tuple(models.split()), mesh, options)
    return function

"""Cells: each layout of ``layouts/PACKAGE/LAYOUT.py`` with each model that the file names, as a run of dpexp.

A layout's file has a function ``parallelize(model, mesh)`` and constants, which are read without importing it:

    MESH = "dp=2,tp=2"                   the ranks, as of --mesh
    MODELS = ("llama3", "qwen3")         factories of models.py beside it; the file's cells
    FACTORY = "tiny:kind={}"             how a model's name becomes a factory with options; "{}" without it
    OPTIONS = {"loss": "models.py:loss"} further options of the run; files are beside the layout

``OPTIONS`` of models.py are those of all layouts beside it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from dpexp.config.run_config import RunConfig

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LAYOUTS = HERE / "layouts"

CONSTANTS = ("MESH", "MODELS", "FACTORY", "OPTIONS", "RANKS")

VERSIONS = {
    "torchtitan": ("torch", "torchtitan"),
    "transformers": ("torch", "transformers"),
    "accelerate": ("torch", "accelerate"),
    "lightning": ("torch", "lightning"),
    "pytorch": ("torch",),
    "torchgpipe": ("torch", "torchgpipe"),
}
"""The packages whose versions a cell's result is about, by the folder of its layout."""

RUN: dict[str, Any] = {
    "strategy": "custom",
    "data": "random:samples=9",
    "batch_size": 6,
    "steps": 1,
    "warmup": 0,
    "phase_steps": 0,
    "threads": 1,
    "devices": "cpu",
    "track": False,
    "experiment": "public_layouts",
}
"""What all runs have in common: batches of 6 and of 3 rows, which 2 and 4 ranks share unevenly."""


@dataclass(frozen=True)
class Cell:
    """One layout of one model; ``name`` is ``PACKAGE/LAYOUT/MODEL``."""

    package: str
    layout: str
    model: str
    constants: dict[str, Any] = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.package}/{self.layout}/{self.model}"

    @property
    def ranks(self) -> int:
        return self.config.options.ranks

    @cached_property
    def config(self) -> RunConfig:
        """The run, whose files are named from the root of the checkout."""
        factory = "models.py:" + self.constants.get("FACTORY", "{}").format(self.model)
        options = {
            "model": factory,
            "layout": f"{self.layout}.py:parallelize",
            **self.constants.get("OPTIONS", {}),
        }
        folder = (LAYOUTS / self.package).relative_to(ROOT)
        found = {
            key: f"{folder}/{value}" if ".py:" in str(value) else value for key, value in options.items()
        }
        return RunConfig.from_dict(RUN | {"mesh": self.constants["MESH"], "run_name": self.name} | found)


def constants(path: Path) -> dict[str, Any]:
    """The ``CONSTANTS`` of a Python file, without importing it."""
    found = {}
    for line in ast.parse(path.read_text()).body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") in CONSTANTS:
            found[line.targets[0].id] = ast.literal_eval(line.value)
    return found


def cells(*patterns: str) -> list[Cell]:
    """The cells whose names match one of the patterns, or begin with one; all without patterns."""
    return [
        each for each in _all() if not patterns or any(_matches(each.name, pattern) for pattern in patterns)
    ]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}/")


def _all() -> Iterator[Cell]:
    for models in LAYOUTS.glob("*/models.py"):
        package, common = models.parent.name, constants(models).get("OPTIONS", {})
        for path in sorted(models.parent.glob("*.py")):
            found = constants(path)
            found["OPTIONS"] = common | found.get("OPTIONS", {})
            for model in found.get("MODELS", ()):
                yield Cell(package, path.stem, model, found)

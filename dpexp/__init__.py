"""dpexp: how should this model be laid over these devices?

``dpexp.run(dpexp.RunConfig("hybrid", virtual=2))`` runs, verifies, measures and records one layout.
Importing the package imports neither torch nor mlflow: the registries,
which need torch, are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpexp.config import RunConfig
from dpexp.record import Record
from dpexp.run import run

if TYPE_CHECKING:
    from dpexp.models import MODELS
    from dpexp.strategies import STRATEGIES

__all__ = ["MODELS", "STRATEGIES", "Record", "RunConfig", "run"]


def __getattr__(name: str) -> Any:
    if name in ("MODELS", "STRATEGIES"):
        return getattr(importlib.import_module(f"dpexp.{name.lower()}"), name)
    raise AttributeError(f"module 'dpexp' has no attribute '{name}'")

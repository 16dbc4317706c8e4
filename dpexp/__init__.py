"""dpexp: how should this model be laid out across these devices?

``dpexp.run(dpexp.RunConfig("hybrid", virtual=2))`` runs, verifies, measures and records one layout.
``dpexp.prove(model, parallelize, batches, loss)`` compares somebody's own layout with a single device.
``dpexp.watch(model, loss)`` compares somebody's own training loop with a single device.
``dpexp.plan(model, data, devices="8xH100")`` says what each layout needs on devices that are not there.
Importing the package imports neither torch nor mlflow: what needs torch is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dpexp.config.errors import ConfigError, NotComparableError, VerificationError
from dpexp.config.run_config import RunConfig
from dpexp.plan.public import plan
from dpexp.record.record import Record
from dpexp.run import run
from dpexp.watch.public import watch

if TYPE_CHECKING:
    from dpexp.models.registry import MODELS
    from dpexp.strategies.registry import STRATEGIES
    from dpexp.verification.prove import prove

__all__ = [
    "MODELS",
    "STRATEGIES",
    "ConfigError",
    "NotComparableError",
    "Record",
    "RunConfig",
    "VerificationError",
    "plan",
    "prove",
    "run",
    "watch",
]

__version__ = "0.3.0"

_LATE = {
    "MODELS": "dpexp.models.registry",
    "STRATEGIES": "dpexp.strategies.registry",
    "prove": "dpexp.verification.prove",
}


if not TYPE_CHECKING:  # a type checker would take every name for one of these

    def __getattr__(name):
        if name in _LATE:
            return getattr(importlib.import_module(_LATE[name]), name)
        raise AttributeError(f"module 'dpexp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

"""DPEXP_HOME: where runs, the MLflow store and its artifacts lie."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Where runs, the store and its artifacts lie: ``DPEXP_HOME``, else the repository root. Absolute."""
    chosen = os.environ.get("DPEXP_HOME")
    return Path(chosen).expanduser().resolve() if chosen else Path(__file__).resolve().parents[2]

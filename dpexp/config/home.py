"""DPEXP_HOME: the folder of the runs, the MLflow store and its artifacts."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that ``dpexp`` is imported from."""


def home() -> Path:
    """The absolute path that ``DPEXP_HOME`` names, else the folder that ``dpexp`` is imported from."""
    path = os.environ.get("DPEXP_HOME")
    return Path(path).expanduser().resolve() if path else ROOT

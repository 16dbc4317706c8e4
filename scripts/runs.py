"""The recorded runs: list and show them, deliver them to MLflow, reproduce one, close dead ones."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands.app import run_app
from dpexp.commands.runs import app

if __name__ == "__main__":
    run_app(app)

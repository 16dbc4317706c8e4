"""The recorded runs: list and show them, deliver them to MLflow, reproduce one, close dead ones."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands import cli
from dpexp.commands.runs import app

if __name__ == "__main__":
    cli.main(app)

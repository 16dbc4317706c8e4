"""The MLflow UI of the recorded runs, on loopback, with a link to the runs of each experiment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands.app import run_app
from dpexp.commands.ui import app

if __name__ == "__main__":
    run_app(app)

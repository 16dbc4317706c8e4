"""The MLflow UI of the recorded runs, on loopback, with a link to the runs of each experiment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands import cli
from dpexp.commands.ui import app

if __name__ == "__main__":
    cli.main(app)

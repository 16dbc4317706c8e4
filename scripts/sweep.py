"""Run an experiment, each run in a new process, and report whether its claims hold."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands.app import run_app
from dpexp.commands.sweep import app

if __name__ == "__main__":
    run_app(app)

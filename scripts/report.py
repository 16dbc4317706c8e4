"""Compare recorded runs in tables and figures; write and check the READMEs of experiments."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands.app import run_app
from dpexp.commands.report import app

if __name__ == "__main__":
    run_app(app)

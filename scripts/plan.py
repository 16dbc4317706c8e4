"""Plan layouts on devices that nobody has yet: does the model fit, and in which layout?"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.commands.app import run_app
from dpexp.commands.plan import app

if __name__ == "__main__":
    run_app(app)

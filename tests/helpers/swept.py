"""A small experiment with a cell that is disturbed, for tests of sweeps."""

from pathlib import Path

from dpexp.record.fold import load_record
from dpexp.record.record import Record
from dpexp.record.runs import folders
from dpexp.study.experiment import Experiment, load_experiment
from dpexp.study.sweep import Sweep

CONFIG = """
from pathlib import Path
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Claim
MODELS = Path(__file__).parent / "models.py"
def run(**options):
    return RunConfig("single", devices="cpu", steps=3, phase_steps=2, threads=1, track=False, **options)
QUESTION = "Does it?"
RUNS = {{
    "quick": run(),
    "{waits}": run(model=f"{{MODELS}}:{waits}", check=False),
    "single": run(lr=0.1),
}}
CLAIMS = [Claim("It is verified.", "verified", "quick", "==", True)]
ANSWER, COLUMNS = "It takes {{value step_ms quick}}.", ("step_ms",)
REPEATS = 2
"""
MODELS = """
import os, pathlib, signal, time
from dpexp.models.linear import Linear
here = pathlib.Path(__file__).parent
def slow():
    (here / "started").touch()
    while not (here / "fixed").exists():
        time.sleep(0.05)
    return Linear(5, 2)
def fragile():
    if not (here / "fixed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return Linear(5, 2)
"""


def experiment(folder: Path, waits: str = "slow") -> Experiment:
    """Cells ``quick``, ``single``, and one that is disturbed until the file «fixed» exists; in two rounds.

    ``slow`` waits, and ``fragile`` is killed.
    """
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG.format(waits=waits))
    (folder / "models.py").write_text(MODELS)
    return load_experiment(folder)


def runs_of(sweep: Sweep) -> list[Record]:
    """All of its runs, also several of one name, in the order of their starts."""
    every = map(load_record, folders(sweep.folder.parent))
    return sorted((run for run in every if run.parent == sweep.folder.name), key=lambda run: run.started)

"""A small experiment whose cells are programs, for tests of sweeps: a run costs half a second."""

from pathlib import Path

from dpexp.study.experiment.experiment import Experiment, load_experiment

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment.experiment import Claim, Program
from dpexp.study.experiment.figure_kinds import Bars
QUESTION = "Does it?"
RUNS = {{
    "quick": Program("program.py", ("quick",)),
    "{waits}": Program("program.py", ("{waits}",)),
    "single": RunConfig("single", devices="cpu", steps=3, phase_steps=2, threads=1, track=False),
}}
CLAIMS = [Claim("It is quick.", "step_ms", "quick", "<", 5.0)]
ANSWER, COLUMNS = "It takes {{value step_ms quick}}.", ("step_ms",)
FIGURE, REPEATS = Bars("", "step_ms", {{}}), 2
"""
PROGRAM = """
import os, pathlib, signal, sys, time
sys.path.insert(0, %r)
from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record, new_run_id
here, name = pathlib.Path(__file__).parent, sys.argv[1]
with open(here / "started", "a") as file:
    file.write(name + chr(10))
while name in ("slow", "fragile") and not (here / "mended").exists():
    if name == "fragile":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
record = Record(run_id=new_run_id(), name=name, status="finished", parent=os.environ["DPEXP_PARENT"])
record.steps = {"time_ms": [1.0, 1.1, 0.9], "loss": [1.0] * 3, "samples": [30] * 3}
summarize(record)
print(record.to_json(), flush=True)
with open(here / "printed", "a") as file:
    file.write(name + chr(10))
while name == "lingers" and not (here / "mended").exists():
    time.sleep(0.05)
"""


def experiment(folder: Path, waits: str = "slow") -> Experiment:
    """Cells ``quick``, ``single``, and one that is disturbed until the file «mended» exists; in two rounds.

    ``slow`` waits before it prints its Record, ``lingers`` afterwards, and ``fragile`` is killed.
    """
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG.format(waits=waits))
    (folder / "program.py").write_text(PROGRAM % str(ROOT))
    return load_experiment(folder)


def started(of: Experiment, event: str = "started") -> list[str]:
    """The cells of the programs that have started, or ``printed``, in their order."""
    path = of.folder / event
    return path.read_text().split() if path.is_file() else []

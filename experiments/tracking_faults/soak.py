"""Damage runs in every way that we know of, and count what ``runs.py check --store`` finds and repairs.

::

    sweeps       signal sweeps at random moments --> resume --> every cell finished once; check
    answers      break an answer of an MLflow server --> sync --> check: there once
    processes    start runs; signal, stop, limit and disturb them at random moments, resume some
                 --> reap, sync, reproduce --> check, repair: no run in MLflow that was kept off, nothing left
    files        damage what derives from a journal, delete MLflow runs --> check, repair, check
    database     delete mlflow.db --> check, repair, check
    hostile      write runs of hostile texts --> list, show, report, sync, check: once, and nothing controls
    journals     damage journals --> check, repair, check: check still names them

``python experiments/tracking_faults/soak.py [--faults 200]`` writes ``soak.json`` and the figures of README.md.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import typer
from answers import break_answers
from damage import FILES
from disturbances import SINGLE
from files import damage_files
from hostile_texts import deliver_hostile
from processes import disturb_processes
from scene import Scene
from sweeps import SWEEP, disturb_sweeps
from tally import HERE, Tallies, write_figures

from dpexp.record.journal.journal import SWEEP_STRATEGY


def main(
    faults: Annotated[
        int, typer.Option(help="About how many faults; each kind is drawn at least once.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Of the faults and their moments.")] = 0,
    at_once: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    minutes: Annotated[float, typer.Option(help="No process is disturbed after so many.")] = 1e6,
    only: Annotated[str, typer.Option(help="One family; what soak.json has of the others stays.")] = "",
) -> None:
    """Do the faults, judge each with ``runs.py check --store``, and write the figures."""
    rng, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpexp-soak-", ignore_cleanup_errors=True) as folder:
        home, answers = Path(folder, "home"), Path(folder, "answers")
        home.mkdir()
        answers.mkdir()
        scene = Scene(home)
        families: dict[str, Callable[[], Tallies]] = {
            "sweeps": lambda: disturb_sweeps(scene, faults, rng),
            "answers": lambda: break_answers(Scene(answers), faults, rng),
            "processes": lambda: disturb_processes(scene, faults, rng, at_once, began + 60 * minutes),
            "files": lambda: damage_all(scene, faults, rng),
        }
        for family in only.split(",") if only else families:
            tallies = families[family]()
            write_record(tallies, seed, (time.monotonic() - began) / 60, is_first=not only)
            began, only = time.monotonic(), "others"


def damage_all(scene: Scene, faults: int, rng: random.Random) -> Tallies:
    """Damage what derives from journals, then the store, and journals at last: they stay as they are."""
    *derived, journals = FILES
    tallies: Tallies = {}
    for _ in range(3 - len(scene.output("list"))):  # where no other family has made runs
        assert scene.run(*SINGLE) == 0
    if not any(row["strategy"] == SWEEP_STRATEGY for row in scene.output("list")):
        assert [scene.run("sweep.py", *SWEEP, "--seed", seeds) for seeds in ("0,1", "2,3")] == [0, 0]
    for kinds in derived:
        tallies |= damage_files(scene, kinds, faults, rng)
    tallies |= deliver_hostile(scene, faults, rng)
    return tallies | damage_files(scene, journals, faults, rng)


def write_record(tallies: Tallies, seed: int, minutes: float, *, is_first: bool) -> None:
    """Add a family to what was counted before, unless it is the first of a soak."""
    path = HERE / "soak.json"
    before = {"seeds": [], "minutes": 0.0, "kinds": {}} if is_first else json.loads(path.read_text())
    kinds = before["kinds"] | {kind: asdict(tally) for kind, tally in tallies.items()}
    result = {
        "faults": sum(kind["n"] for kind in kinds.values()),
        "seeds": [*before["seeds"], seed],
        "minutes": round(before["minutes"] + minutes, 1),
        "kinds": kinds,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    write_figures(result)


if __name__ == "__main__":
    typer.run(main)

"""Signal sweeps at random moments and resume them: each cell must finish once."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import typer
from scene import ROOT, Scene, copies, embedded, is_tracked
from tally import Tallies, Tally, scaled

from dpexp.record.journal.fold import fold, load
from dpexp.record.journal.journal import JOURNAL, SWEEP_STRATEGY
from dpexp.record.record import Record
from dpexp.record.runs.sweep_records import PROGRAMS as FOLDER

SWEEP = ("single", "--devices", "cpu", "--steps", "300", "--repeat", "1", "--no-check", "--threads", "1")
KINDS: dict[str, tuple[int, signal.Signals, str, Sequence[str]]] = {
    "SIGTERM to a sweep": (6, signal.SIGTERM, "sweep", SWEEP),
    "SIGKILL to a sweep": (6, signal.SIGKILL, "sweep", SWEEP),
    "SIGKILL to a sweep without tracking": (2, signal.SIGKILL, "sweep", (*SWEEP, "--no-track")),
    "SIGKILL to a run of a sweep": (4, signal.SIGKILL, "child", SWEEP),
    "SIGKILL to a sweep with a program": (4, signal.SIGKILL, "sweep", ()),
    "SIGKILL to a program of a sweep": (4, signal.SIGKILL, "child", ()),
}
"""{fault: (how many of 200, the signal, to whom, the sweep)}; without words it has a cell that is a program."""
PROGRAMS = """
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment.experiment import Claim, Program
from dpexp.study.experiment.figure_kinds import Bars
QUESTION, ANSWER, COLUMNS, REPEATS = "Does it end?", "Yes.", ("step_ms",), 1
RUNS = {
    "program": Program("program.py", ("program",)),
    "single": RunConfig("single", devices="cpu", steps=30, check=False, threads=1),
}
CLAIMS, FIGURE = [Claim("It is quick.", "step_ms", "program", "<", 500.0)], Bars("", "step_ms", {})
"""
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from dpexp.study.sweep.program import program_record
time.sleep(1)
print(program_record(__file__, sys.argv[1], [1.0, 1.1, 0.9], 30, {{}}).to_json(), flush=True)
"""


def disturb_sweeps(scene: Scene, faults: int, rng: random.Random) -> Tallies:
    """Signal sweeps of two cells and resume them: each cell must have finished once, and be in MLflow."""
    tallies: Tallies = {}
    began = time.monotonic()
    assert scene.run("sweep.py", *SWEEP, "--seed", "0,1") == 0
    sweep_s = time.monotonic() - began
    plan = [(kind, *how[1:]) for kind, how in KINDS.items() for _ in range(scaled(how[0], faults))]
    for n, (kind, number, target, options) in enumerate(plan):
        here = scene.of(f"sweep {n}")
        words = (*options, "--seed", f"{2 * n + 2},{2 * n + 3}") if options else (_experiment(here),)
        process, after_s = here.start("sweep.py", *words), sweep_s * rng.uniform(0.1, 0.9)
        time.sleep(after_s)
        _send(process.pid, target, number)
        here.wait(process)
        if here.run("sweep.py", *words, "--resume") == 2:  # none had begun
            assert here.run("sweep.py", *words) == 0
        remains = here.left()
        assert [here.run("runs.py", command) for command in ("reap", "sync")] == [0, 0]
        found = here.check()
        sweep, cells = _newest_sweep(scene.home)
        names = [cell.name for cell in cells if cell.status == "finished"]
        is_lost = sorted(names) != sorted({*names}) or len(names) != 2 or sweep.status != "finished"
        is_lost |= bool(found & {cell.run_id for cell in cells})
        stored = copies(embedded(scene.home), sweep.run_id)
        is_lost |= bool(stored) != is_tracked(scene.home, sweep.run_id) and bool(options)
        tallies.setdefault(kind, Tally()).count(
            sweep.run_id,
            found & {sweep.run_id},
            found & {sweep.run_id},
            is_lost=is_lost,
            is_doubled=stored > 1,
            hangs=here.hangs,
            leaves=bool(remains),
        )
        typer.echo(f"{kind} after {after_s:.1f} s: finished {sorted(names)}; {found} {remains}", err=True)
    return tallies


def _experiment(scene: Scene) -> str:
    """An experiment of a program and a run, in a folder of its own."""
    folder = scene.home / "experiments" / scene.name.replace(" ", "-")
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(PROGRAMS)
    (folder / "program.py").write_text(PROGRAM)
    return str(folder)


def _send(pid: int, target: str, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        main = psutil.Process(pid)
        cells = [
            each
            for each in main.children()
            if not any("uploader" in word or "tracker" in word for word in each.cmdline())
        ]
        for process in [main] if target == "sweep" else cells:
            process.send_signal(number)


def _newest_sweep(home: Path) -> tuple[Record, list[Record]]:
    """The Records of the newest sweep and of its runs and programs."""
    records = [load(path.parent) for path in (home / "runs").glob(f"*/{JOURNAL}")]
    sweep = max((each for each in records if each.strategy == SWEEP_STRATEGY), key=lambda each: each.started)
    programs = [fold(path) for path in (home / "runs" / sweep.run_id / FOLDER).glob("*.jsonl")]
    return sweep, [*programs, *(each for each in records if each.parent == sweep.run_id)]

"""Signal sweeps at random moments and resume them: each cell must finish once."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from scene import POLL_S, ROOT, Scene, copies, embedded, is_tracked, wait_until_used
from tally import Tally

from dpexp.record.journal.fold import fold, load
from dpexp.record.journal.journal import JOURNAL, SWEEP_STRATEGY
from dpexp.record.record import Record
from dpexp.record.runs.sweep_records import PROGRAMS as FOLDER

SWEEP = ("single", "--devices", "cpu", "--steps", "300", "--repeat", "1", "--no-check", "--threads", "1")
KINDS: dict[str, tuple[int, signal.Signals, str, Sequence[str]]] = {
    "SIGTERM to a sweep": (3, signal.SIGTERM, "sweep", SWEEP),
    "SIGKILL to a sweep": (3, signal.SIGKILL, "sweep", SWEEP),
    "SIGKILL to a sweep without tracking": (3, signal.SIGKILL, "sweep", (*SWEEP, "--no-track")),
    "SIGKILL to a run of a sweep": (3, signal.SIGKILL, "child", SWEEP),
    "SIGKILL to a sweep with a program": (3, signal.SIGKILL, "sweep", ()),
    "SIGKILL to a program of a sweep": (3, signal.SIGKILL, "child", ()),
}
"""{fault: (how many, the signal, to whom, the sweep)}; without words it has a cell that is a program."""
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


@dataclass(frozen=True)
class _Ended:
    """A sweep that was signalled and resumed."""

    kind: str
    how: str
    run: str
    hangs: bool
    left: list[str]


def disturb_sweeps(scene: Scene, todo: Sequence[str], rng: random.Random, tally: Tally) -> None:
    """Signal sweeps of two cells and resume them: each cell must have finished once, and be in MLflow."""
    ended = [end for kind in todo if (end := _disturb(scene, kind, rng)) is not None]
    codes = [scene.run("runs.py", command) for command in ("reap", "sync")]
    sweeps = {end.run: _sweep(scene.home, end.run) for end in ended}
    ours = {each.run_id for sweep, cells in sweeps.values() for each in (sweep, *cells)}
    ours = {run for run in ours if (scene.home / "runs" / run).exists()}  # a program has none
    found, left = scene.check_and_repair(*sorted(ours)) if ours else (set(), set())
    for end in ended:
        sweep, cells = sweeps[end.run]
        names = sorted(cell.name for cell in cells if cell.status == "finished")
        is_lost = names != sorted({*names}) or len(names) != 2 or sweep.status != "finished"
        is_lost |= bool(found & {cell.run_id for cell in cells})
        stored = copies(embedded(scene.home), end.run)
        is_lost |= bool(stored) != is_tracked(scene.home, end.run) and bool(KINDS[end.kind][3])
        how = f"{end.how}; finished {names}; reap and sync {codes}; in MLflow {stored}; left {end.left}"
        tally.add(
            "sweeps",
            end.kind,
            end.run,
            found,
            left,
            how=how,
            is_lost=is_lost,
            is_doubled=stored > 1,
            hangs=end.hangs or scene.hangs,
            leaves=bool(end.left),
        )


def _disturb(scene: Scene, kind: str, rng: random.Random) -> _Ended | None:
    """Signal a sweep and resume it; None where it had ended before the moment."""
    _, number, target, options = KINDS[kind]
    seed = rng.randrange(10**6)
    here = scene.of(f"sweep {seed}")
    words = (*options, "--seed", f"{seed},{seed + 1}") if options else (_experiment(here),)
    moment = _undisturbed_s(scene, options) * rng.uniform(0.1, 0.8)
    process = here.start("sweep.py", *words)
    used = wait_until_used(process, moment)
    while process.poll() is None and not (hit := _targets(process.pid, target)):
        time.sleep(POLL_S)
    if process.poll() is not None:
        return None
    for victim in hit:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
    here.wait(process)
    if here.run("sweep.py", *words, "--resume") == 2:  # none had begun
        assert here.run("sweep.py", *words) == 0
    return _Ended(kind, f"after {used:.1f} s", _newest(scene.home), here.hangs, here.left())


def _undisturbed_s(scene: Scene, options: Sequence[str]) -> float:
    """The processor time of an undisturbed sweep, measured once in a home."""
    path = scene.home / f"undisturbed-{len(options)}"
    if not path.exists():
        words = (*options, "--seed", "0,1") if options else (_experiment(scene.of("undisturbed")),)
        process = scene.start("sweep.py", *words)
        path.write_text(str(wait_until_used(process, math.inf)))
        assert process.returncode == 0
    return float(path.read_text())


def _experiment(scene: Scene) -> str:
    """An experiment of a program and a run, in a folder of its own."""
    folder = scene.home / "experiments" / scene.name.replace(" ", "-")
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(PROGRAMS)
    (folder / "program.py").write_text(PROGRAM)
    return str(folder)


def _targets(pid: int, target: str) -> list[psutil.Process]:
    """A sweep, or the run or program that it runs at this moment."""
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(pid)
        if target == "sweep":
            return [main]
        return [
            each
            for each in main.children()
            if not any("uploader" in word or "tracker" in word for word in each.cmdline())
        ]
    return []


def _newest(home: Path) -> str:
    """The newest sweep."""
    records = [load(path.parent) for path in (home / "runs").glob(f"*/{JOURNAL}")]
    sweeps = [each for each in records if each.strategy == SWEEP_STRATEGY]
    return max(sweeps, key=lambda each: each.started).run_id


def _sweep(home: Path, run: str) -> tuple[Record, list[Record]]:
    """The Records of a sweep, and of its runs and programs."""
    records = [load(path.parent) for path in (home / "runs").glob(f"*/{JOURNAL}")]
    programs = [fold(path) for path in (home / "runs" / run / FOLDER).glob("*.jsonl")]
    return load(home / "runs" / run), [*programs, *(each for each in records if each.parent == run)]

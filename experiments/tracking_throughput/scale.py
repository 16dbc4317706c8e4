"""Measure what commands cost in a home of 10,000 runs and of a million steps, in seconds of processor time.

``python experiments/tracking_throughput/scale.py [--runs 10000] [--repeats 3]`` writes ``scale.json`` and
README's table; ``--only check`` and the like measure one line of it. Processor time (user and system, of the
command and its children) hardly depends on what else the machine does. The runs of the home have been
compared with the store before, as by every ``sync``; ``check`` is the first one, ``check again`` any later one,
``check an older home`` the first one of runs that were not checked at their end, or by another version.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(Path(__file__).parent)]

import psutil
import typer
from large_home import NEW, Template, make
from measure import begin, end, record_steps, write_between

from dpexp.record.runs.clean_files import NOTE

HERE = Path(__file__).resolve().parent
OF_MANY_RUNS = {
    "list the first time": 1.0,
    "list": 1.0,
    "show": 1.0,
    "show last": 1.0,
    "report the first time": 2.0,
    "report": 2.0,
    "check": 10.0,
    "check again": 10.0,
    "check an older home": 10.0,
    "sync of 20 new runs": 5.0,
}
OF_A_LONG_RUN = {
    "deliver a million steps": 40.0,
    "show a million steps": 1.5,
    "check a million steps": 3.0,
    "check a million steps again": 3.0,
    "verify 5,000 modules": 12.0,
}
LIMITS = OF_MANY_RUNS | OF_A_LONG_RUN
"""What each should take at most, in s."""
ONCE = (
    "list the first time",
    "report the first time",
    "check",
    "check an older home",
    "deliver a million steps",
    "verify 5,000 modules",
)
Lines = Iterator[tuple[str, Callable[[int], float]]]
"""(name, what measures it and gets the number of the repetition)"""
MODULES = """
from torch import nn

class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4998))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = x + 0.001 * layer(x)
        return self.head(x)
"""
"""5,000 modules, each of which computes."""


def cpu_s(home: Path, script: str, *words: str) -> float:
    """Seconds of processor time of a command and its children. Raises CalledProcessError where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"DPEXP_HOME": str(home), "PYTHONPATH": str(home)}
    command = [sys.executable, str(ROOT / "scripts" / script), *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def home_of(home: Path, runs: int) -> list[Template]:
    """A home with copies of three delivered runs."""
    for words in (("single",), ("whole", "--virtual", "2"), ("hybrid", "--virtual", "1")):
        cpu_s(home, "run.py", *words, "--track-timeout", "600")
    return make(home, runs)


def first(home: Path, script: str, *words: str) -> float:
    """A command where nothing that an earlier one has read is kept."""
    for path in home.glob(".cache-*"):
        path.unlink()
    return cpu_s(home, script, *words)


def again(home: Path, repeat: int, script: str, *words: str) -> float:
    """A command after one that has kept what it read."""
    if repeat == 0:
        cpu_s(home, script, *words)
    return cpu_s(home, script, *words)


def first_check(home: Path, *runs: str) -> float:
    """``check`` where nothing is known of an earlier one."""
    for path in home.glob(".cache-check-*"):
        path.unlink()
    return cpu_s(home, "runs.py", "check", *runs)


def check_older(home: Path) -> float:
    """``check`` where the runs have noted nothing at their end."""
    for path in home.glob(f"runs/*/{NOTE}"):
        path.unlink()
    return first_check(home)


def sync_new(home: Path, templates: list[Template], repeat: int) -> float:
    """``sync`` of runs that are new in the home, after an earlier one."""
    if repeat == 0:
        cpu_s(home, "runs.py", "sync")
    for number in range(NEW):
        templates[number % len(templates)].copy(home, f"new{repeat}{number:06x}")
    return cpu_s(home, "runs.py", "sync")


def of_many_runs(home: Path, runs: int) -> Lines:
    """The lines of a home of so many runs."""
    home.mkdir()
    templates = home_of(home, runs)
    yield "list the first time", lambda _: first(home, "runs.py", "list")
    yield "list", lambda repeat: again(home, repeat, "runs.py", "list")
    yield "show", lambda _: cpu_s(home, "runs.py", "show", f"{0:012x}")
    yield "show last", lambda repeat: again(home, repeat, "runs.py", "show", "last")
    yield "report the first time", lambda _: first(home, "report.py")
    yield "report", lambda repeat: again(home, repeat, "report.py")
    yield "check", lambda _: first_check(home)
    yield "check again", lambda _: cpu_s(home, "runs.py", "check")
    yield "check an older home", lambda _: check_older(home)
    yield "sync of 20 new runs", lambda repeat: sync_new(home, templates, repeat)


def of_a_long_run(home: Path) -> Lines:
    """The lines of a run of a million steps, and of one of many modules."""
    home.mkdir()
    journal = begin(home, "million")
    record_steps(journal, 1_000_000, 2000)
    end(journal)
    yield "deliver a million steps", lambda _: cpu_s(home, "runs.py", "sync", "million")
    yield "show a million steps", lambda _: cpu_s(home, "runs.py", "show", "million")
    yield "check a million steps", lambda _: first_check(home, "million")
    yield "check a million steps again", lambda _: cpu_s(home, "runs.py", "check", "million")
    (home / "many_modules.py").write_text(MODULES)
    words = ("single", "--model", "many_modules:Many", "--data", "random:shape=4", "--steps", "5")
    words += ("--threads", "1")  # a second one waits busily in each tiny operation: up to ten times the time
    yield "verify 5,000 modules", lambda _: cpu_s(home, "run.py", *words, "--no-track")


def main(
    runs: Annotated[int, typer.Option(help="Copies of runs.")] = 10_000,
    repeats: Annotated[int, typer.Option(help="Of each measurement that takes less than half a minute.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Measure this line; the others stay.")] = None,
) -> None:
    """Measure everything, and write the figures after each measurement."""
    path, wanted = HERE / "scale.json", set(only or LIMITS)
    if unknown := wanted - LIMITS.keys():
        raise typer.BadParameter(f"there are {', '.join(LIMITS)}, and not {', '.join(unknown)}")
    figures: dict[str, object] = json.loads(path.read_text()) if only else {}
    figures |= {"cores": psutil.cpu_count(), "runs": runs}
    with tempfile.TemporaryDirectory(prefix="dpexp-scale-") as folder:
        large, long = Path(folder) / "large", Path(folder) / "long"
        for name, measure in chain(
            of_many_runs(large, runs) if wanted & OF_MANY_RUNS.keys() else (),
            of_a_long_run(long) if wanted & OF_A_LONG_RUN.keys() else (),
        ):
            if name not in wanted:
                continue
            times = 1 if name in ONCE else repeats
            values = sorted(measure(number) for number in range(times))
            ends = {"median": statistics.median(values), "least": values[0], "most": values[-1]}
            figures[name] = ends | {"n": times}
            typer.echo(f"{name}: {values}", err=True)
            path.write_text(json.dumps(figures, indent=1) + "\n")
            write(figures)


def write(figures: dict[str, object]) -> None:
    """Write the table between README's marks."""
    rows = ["| s of processor time | median | least | most | n | at most |", "|---|---|---|---|---|---|"]
    for name, limit in LIMITS.items():
        found = figures.get(name)
        if not isinstance(found, dict):  # not measured yet
            continue
        shown = " | ".join(f"{found[key]:.3g}" for key in ("median", "least", "most"))
        rows.append(f"| {name} | {shown} | {found['n']} | {limit:g} |")
    rows += ["", f"{figures['runs']:,} runs, {figures['cores']} cores."]
    write_between("scale", rows)


if __name__ == "__main__":
    typer.run(main)

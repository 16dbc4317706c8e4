"""Measure what commands cost in a home of 10,000 runs and of a million steps, in seconds of processor time.

``python experiments/tracking_throughput/scale.py [--runs 10000] [--repeats 3]`` writes ``scale.json`` and
README's table. Processor time (user and system, of the command and its children) hardly depends on what else
the machine does. The runs of the home have been compared with the store before, as by every ``sync``.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(Path(__file__).parent)]

import psutil
import typer
from large_home import NEW, Template, make
from measure import begin, end, record_steps, write_between

HERE = Path(__file__).resolve().parent
LIMITS = {
    "list": 1.0,
    "show": 1.0,
    "show last": 1.0,
    "report": 2.0,
    "check": 10.0,
    "sync of 20 new runs": 5.0,
    "deliver a million steps": 40.0,
    "show a million steps": 1.5,
    "check a million steps": 3.0,
    "verify 5,000 modules": 12.0,
}
"""What each should take at most, in s."""
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
        cpu_s(home, "run.py", *words)
    return make(home, runs)


def sync_new(home: Path, templates: list[Template], repeat: int) -> float:
    """``sync`` of runs that are new in the home."""
    for number in range(NEW):
        templates[number % len(templates)].copy(home, f"new{repeat}{number:06x}")
    return cpu_s(home, "runs.py", "sync")


def million(home: Path, run_id: str) -> float:
    """Record a run of a million steps, and deliver it."""
    journal = begin(home, run_id)
    record_steps(journal, 1_000_000, 2000)
    end(journal)
    return cpu_s(home, "runs.py", "sync", run_id)


def main(
    runs: Annotated[int, typer.Option(help="Copies of runs.")] = 10_000,
    repeats: Annotated[int, typer.Option(help="Of each measurement that takes less than half a minute.")] = 3,
) -> None:
    """Measure everything, and write the figures after each measurement."""
    with tempfile.TemporaryDirectory(prefix="dpexp-scale-") as folder:
        large, long = Path(folder) / "large", Path(folder) / "long"
        for home in (large, long):
            home.mkdir()
        (long / "many_modules.py").write_text(MODULES)
        figures: dict[str, object] = {"cores": psutil.cpu_count(), "runs": runs}

        def measured(name: str, measure: Callable[[int], float], times: int = repeats) -> None:
            values = sorted(measure(number) for number in range(times))
            figures[name] = {
                "median": statistics.median(values),
                "least": values[0],
                "most": values[-1],
                "n": times,
            }
            typer.echo(f"{name}: {values}", err=True)
            (HERE / "scale.json").write_text(json.dumps(figures, indent=1) + "\n")
            write(figures)

        templates = home_of(large, runs)
        measured("list", lambda _: cpu_s(large, "runs.py", "list"))
        measured("show", lambda _: cpu_s(large, "runs.py", "show", f"{0:012x}"))
        measured("show last", lambda _: cpu_s(large, "runs.py", "show", "last"))
        measured("report", lambda _: cpu_s(large, "report.py"))
        measured("check", lambda _: cpu_s(large, "runs.py", "check"), times=1)
        measured("sync of 20 new runs", lambda repeat: sync_new(large, templates, repeat))
        measured("deliver a million steps", lambda repeat: million(long, f"million{repeat}"), times=1)
        measured("show a million steps", lambda _: cpu_s(long, "runs.py", "show", "million0"))
        measured("check a million steps", lambda _: cpu_s(long, "runs.py", "check", "million0"))
        words = ("single", "--model", "many_modules:Many", "--data", "random:shape=4", "--steps", "5")
        measured("verify 5,000 modules", lambda _: cpu_s(long, "run.py", *words, "--no-track"), times=1)


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

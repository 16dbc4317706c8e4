"""Kill runs, their uploader processes or both at random moments, and count what is lost, damaged or RUNNING.

``python experiments/tracking_faults/kills.py [--kills 100]`` writes ``kills.json`` and the figures of README.md.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import typer

from dpexp.record import JOURNAL, JournalReader, fold

HERE = Path(__file__).resolve().parent
RUN = (
    "run.py",
    "single",
    "--steps",
    "3000",
    "--threads",
    "1",
    "--no-check",
    "--quiet",
    "--track-timeout",
    "60",
)
WAYS = {
    "SIGKILL to the run": (("run", signal.SIGKILL),),
    "SIGTERM to the run": (("run", signal.SIGTERM),),
    "SIGINT to the run": (("run", signal.SIGINT),),
    "SIGKILL to the uploader": (("uploader", signal.SIGKILL),),
    "SIGKILL to both": (("uploader", signal.SIGKILL), ("run", signal.SIGKILL)),
}


def start(script: str, *arguments: str, home: Path) -> subprocess.Popen[bytes]:
    """Start a script without output."""
    command, env = [sys.executable, str(ROOT / "scripts" / script), *arguments], {"DPEXP_HOME": str(home)}
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | env, stdout=nowhere, stderr=nowhere)


def uploaders(main: psutil.Process) -> list[psutil.Process]:
    """The uploader process of a run, if it exists at this moment."""
    try:
        return [child for child in main.children() if "dpexp.tracking.uploader_process" in child.cmdline()]
    except psutil.NoSuchProcess:
        return []


def undisturbed_s(home: Path) -> float:
    """Seconds that an undisturbed run takes; it also creates the store."""
    began = time.monotonic()
    assert start(*RUN, home=home).wait() == 0
    return time.monotonic() - began


def kill(home: Path, name: str, way: str, after_s: float) -> dict[str, Any]:
    """Disturb one run of this name after ``after_s`` seconds; returns what was done and when."""
    process = start(*RUN, "--run-name", name, home=home)
    main = psutil.Process(process.pid)
    time.sleep(after_s)
    uploader = uploaders(main)
    killed_at, hit = time.time(), []
    for target, number in WAYS[way]:
        for victim in uploader if target == "uploader" else [main]:
            try:
                victim.send_signal(number)
                hit.append(target)
            except psutil.NoSuchProcess:
                continue
    process.wait()
    psutil.wait_procs(uploader, timeout=120)
    typer.echo(f"{name}: {way} after {after_s:.1f} s", err=True)
    return {"name": name, "way": way, "after_s": after_s, "killed_at": killed_at, "hit": hit}


def lost_s(journal: Path | None, kill: dict[str, Any]) -> float | None:
    """Seconds between the last line of the journal and SIGKILL, for a run that was measuring steps."""
    if journal is None or "run" not in kill["hit"] or "SIGKILL" not in kill["way"]:
        return None
    record = fold(journal)
    if record.status != "killed" or not record.steps["time_ms"] or record.phases:
        return None
    last = list(JournalReader(journal))[-1]
    return max(0.0, float(kill["killed_at"]) - last["at"] / 1000)


def delivered(home: Path) -> dict[str, Any]:
    """Compare every run's journal with what MLflow has of it."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    found: dict[str, list[Any]] = {}
    for run in client.search_runs(experiments, max_results=5000):
        found.setdefault(run.data.tags["dpexp.run_id"], []).append(run)
    counts: Counter[str] = Counter()
    for folder in sorted((home / "runs").iterdir()):
        record = fold(folder / JOURNAL)
        counts["journals"] += 1
        counts["last lines cut off"] += sum("cut off" in damage for damage in record.damage)
        counts["lines damaged otherwise"] += sum("cut off" not in damage for damage in record.damage)
        runs = found.get(folder.name, [])
        counts["runs missing in MLflow"] += not runs
        counts["runs twice in MLflow"] += len(runs) > 1
        for run in runs:
            counts["runs left RUNNING"] += run.info.status == "RUNNING"
            counts[f"ended {run.info.status}"] += 1
            for key, values in (("loss", record.steps["loss"]), ("time_ms/step", record.steps["time_ms"])):
                history = client.get_metric_history(run.info.run_id, key)
                points = sorted((point.step, point.value) for point in history)
                counts["values compared"] += len(values)
                counts["values wrong, missing or twice"] += points != list(enumerate(values))
    return dict(counts)


def main(
    kills: Annotated[int, typer.Option(help="How many runs to disturb.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the moments and the ways.")] = 0,
    at_once: Annotated[int, typer.Option(help="Runs at a time.")] = 3,
) -> None:
    """Disturb the runs, reap, sync, compare, and write the figures."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="dpexp-kills-") as folder:
        home = Path(folder)
        run_s = undisturbed_s(home)
        plan = [(rng.choice(list(WAYS)), rng.uniform(0, 1.1 * run_s)) for _ in range(kills)]
        with ThreadPoolExecutor(at_once) as pool:
            done = list(pool.map(lambda n: kill(home, f"kill {n}", *plan[n]), range(kills)))
        codes = [start("runs.py", command, home=home).wait() for command in ("reap", "sync")]
        journals = {fold(path).name: path for path in (home / "runs").glob(f"*/{JOURNAL}")}
        losses = (lost_s(journals.get(disturbed["name"]), disturbed) for disturbed in done)
        result = {
            "kills": kills,
            "ordinary_run_s": run_s,
            "ways": Counter(disturbed["way"] for disturbed in done),
            "before a run began": sum(disturbed["name"] not in journals for disturbed in done),
            "after everything had ended": sum(not disturbed["hit"] for disturbed in done),
            "reap and sync ended with": codes,
            "found": delivered(home),
            "seconds_lost": sorted(lost for lost in losses if lost is not None),
        }
    (HERE / "kills.json").write_text(json.dumps(result, indent=1) + "\n")
    write_figures(result)


def write_figures(result: dict[str, Any]) -> None:
    """Write the table between README's marks."""
    losses = result["seconds_lost"]
    rows = [(f"kills: {way}", count) for way, count in sorted(result["ways"].items())]
    rows += [(key, result[key]) for key in ("before a run began", "after everything had ended")]
    rows += sorted(result["found"].items())
    if losses:
        spread = f"median {statistics.median(losses):.2f}, most {max(losses):.2f}, n = {len(losses)}"
        rows.append(("seconds of steps lost to SIGKILL", spread))
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition("<!-- begin: figures -->")
    _, _, after = rest.partition("<!-- end: figures -->")
    readme.write_text(f"{before}<!-- begin: figures -->\n{table}\n<!-- end: figures -->{after}")


if __name__ == "__main__":
    typer.run(main)

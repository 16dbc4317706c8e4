"""Kill runs, their uploaders, or both at random moments, and count what was lost, broken or left RUNNING.

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


def start(*words: str, home: Path) -> subprocess.Popen[bytes]:
    """A script, silently."""
    command = [sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | {"DPEXP_HOME": str(home)}, stdout=quiet, stderr=quiet)


def uploaders(main: psutil.Process) -> list[psutil.Process]:
    """The uploader of a run, if it has one at this moment."""
    try:
        return [child for child in main.children() if "dpexp.tracking.worker" in child.cmdline()]
    except psutil.NoSuchProcess:
        return []


def ordinary(home: Path) -> float:
    """Seconds that an undisturbed run takes; it also makes the store."""
    began = time.monotonic()
    assert start(*RUN, home=home).wait() == 0
    return time.monotonic() - began


def kill(home: Path, name: str, way: str, after_s: float) -> dict[str, Any]:
    """One run of this name, disturbed after so many seconds; returns what was done and when."""
    process = start(*RUN, "--run-name", name, home=home)
    main = psutil.Process(process.pid)
    time.sleep(after_s)
    worker = uploaders(main)
    killed_at, hit = time.time(), []
    for whom, sign in WAYS[way]:
        for victim in worker if whom == "uploader" else [main]:
            try:
                victim.send_signal(sign)
                hit.append(whom)
            except psutil.NoSuchProcess:
                continue
    process.wait()
    psutil.wait_procs(worker, timeout=120)
    typer.echo(f"{name}: {way} after {after_s:.1f} s", err=True)
    return {"name": name, "way": way, "after_s": after_s, "killed_at": killed_at, "hit": hit}


def lost_s(journal: Path | None, done: dict[str, Any]) -> float | None:
    """Seconds between the last line of the journal and SIGKILL, for a run that was measuring steps."""
    if journal is None or "run" not in done["hit"] or "SIGKILL" not in done["way"]:
        return None
    record = fold(journal)
    if record.status != "killed" or not record.steps["time_ms"] or record.phases:
        return None
    last = list(JournalReader(journal))[-1]
    return max(0.0, float(done["killed_at"]) - last["at"] / 1000)


def delivered(home: Path) -> dict[str, Any]:
    """Compare every run's journal with what MLflow holds of it."""
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
                there = sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, key))
                counts["values compared"] += len(values)
                counts["values wrong, missing or twice"] += there != list(enumerate(values))
    return dict(counts)


def main(
    kills: Annotated[int, typer.Option(help="How many runs to disturb.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the moments and the ways.")] = 0,
    at_once: Annotated[int, typer.Option(help="Runs at a time.")] = 3,
) -> None:
    """Disturb, reap, sync, compare, write down."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="dpexp-kills-") as folder:
        home = Path(folder)
        whole_s = ordinary(home)
        plan = [(chance.choice(list(WAYS)), chance.uniform(0, 1.1 * whole_s)) for _ in range(kills)]
        with ThreadPoolExecutor(at_once) as pool:
            done = list(pool.map(lambda n: kill(home, f"kill {n}", *plan[n]), range(kills)))
        codes = [start("runs.py", word, home=home).wait() for word in ("reap", "sync")]
        journals = {fold(path).name: path for path in (home / "runs").glob(f"*/{JOURNAL}")}
        gaps = [gap for gap in (lost_s(journals.get(each["name"]), each) for each in done) if gap is not None]
        result = {
            "kills": kills,
            "ordinary_run_s": whole_s,
            "ways": Counter(each["way"] for each in done),
            "before a run began": sum(each["name"] not in journals for each in done),
            "after everything had ended": sum(not each["hit"] for each in done),
            "reap and sync ended with": codes,
            "found": delivered(home),
            "seconds_lost": sorted(gaps),
        }
    (HERE / "kills.json").write_text(json.dumps(result, indent=1) + "\n")
    write_figures(result)


def write_figures(result: dict[str, Any]) -> None:
    """Put the table between README's marks."""
    gaps = result["seconds_lost"]
    rows = [(f"kills: {way}", count) for way, count in sorted(result["ways"].items())]
    rows += [(key, result[key]) for key in ("before a run began", "after everything had ended")]
    rows += sorted(result["found"].items())
    if gaps:
        spread = f"median {statistics.median(gaps):.2f}, most {max(gaps):.2f}, n = {len(gaps)}"
        rows.append(("seconds of steps lost to SIGKILL", spread))
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition("<!-- begin: figures -->")
    _, _, after = rest.partition("<!-- end: figures -->")
    readme.write_text(f"{before}<!-- begin: figures -->\n{table}\n<!-- end: figures -->{after}")


if __name__ == "__main__":
    typer.run(main)

"""Measure the cost of recording and delivering, from one step's journal line to a run of a million steps.

``python experiments/tracking_throughput/measure.py [--steps 1000000]`` writes ``figures.json`` and README's table.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import psutil
import typer

from dpexp.record.clock import now
from dpexp.record.journal.fold import finish
from dpexp.record.journal.journal import Journal

HERE = Path(__file__).resolve().parent
POINTS = 200_000
PAUSE_S = 0.08
"""Pause after every 2000 steps of the long run: its steps then take 40 us, like the shortest real ones."""
RUNS = 10_000


def list_s(home: Path, run_id: str) -> float:
    """Seconds that ``runs.py list`` takes; an AssertionError unless it shows the run as delivered."""
    command = [sys.executable, str(ROOT / "scripts" / "runs.py"), "list", "--json"]
    began = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | {"DPEXP_HOME": str(home)}, capture_output=True, check=True
    )
    elapsed = time.perf_counter() - began
    states = {run["run_id"]: run["delivered"] for run in json.loads(done.stdout)}
    assert states == {run_id: "yes"}, states
    return elapsed


def delivered_losses(home: Path) -> int:
    """How many losses the store has."""
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM metrics WHERE key = 'loss'").fetchone()
    return int(count)


def repeated(measure: Callable[[], float], times: int = 5) -> dict[str, float]:
    """Median, least and most of several measurements."""
    values = sorted(measure() for _ in range(times))
    return {"median": statistics.median(values), "least": values[0], "most": values[-1], "n": times}


def begin(home: Path, run_id: str) -> Journal:
    """The journal of a run that has begun."""
    (home / "runs").mkdir(parents=True, exist_ok=True)
    journal = Journal(home / "runs", run_id)
    journal.set(name=run_id, experiment="dpexp", strategy="single", status="running", started=now())
    journal.flush()
    return journal


def record_steps(journal: Journal, steps: int, every: int) -> None:
    """Record steps as the trainer does, with a flush after ``every`` steps."""
    for number in range(steps):
        journal.extend({"steps.time_ms": [0.25 + number * 1e-9], "steps.loss": [1.0], "steps.samples": [30]})
        if (number + 1) % every == 0:
            journal.flush()


def end(journal: Journal) -> Path:
    """Close the run and write its Record."""
    journal.set(status="finished", ended=now())
    journal.close()
    finish(journal.path)
    return journal.path


RUN_IDS = (f"run{number}" for number in itertools.count())


def step_us(home: Path) -> float:
    """Microseconds that one step costs in the journal, including a flush every 2000 steps."""
    journal = begin(home, next(RUN_IDS))
    began = time.perf_counter()
    record_steps(journal, 20_000, 2000)
    elapsed = time.perf_counter() - began
    journal.close()
    return 1e6 * elapsed / 20_000


def lines_per_s(home: Path) -> float:
    """Lines a second when every step is flushed and synced to the disk."""
    journal = begin(home, next(RUN_IDS))
    began = time.perf_counter()
    record_steps(journal, 500, 1)
    elapsed = time.perf_counter() - began
    journal.close()
    return 500 / elapsed


def points_per_s(home: Path, points: int = POINTS) -> float:
    """Points a second from a journal into the store of this environment."""
    from dpexp.tracking.delivery.upload import Upload
    from dpexp.tracking.store.store import Store

    store = Store.from_environment(home)
    store.open()
    journal = begin(home, next(RUN_IDS))
    record_steps(journal, points // 2, 1000)
    end(journal)
    upload = Upload(store, journal.path)
    upload.attach()
    began = time.perf_counter()
    upload.advance()
    return points / (time.perf_counter() - began)


@contextlib.contextmanager
def server(home: Path) -> Iterator[None]:
    """An MLflow server on a new store, which MLFLOW_TRACKING_URI names meanwhile."""
    from servers import mlflow_server

    with mlflow_server(f"sqlite:///{home / 'served.db'}", home / "artifacts") as port:
        os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
        try:
            yield
        finally:
            del os.environ["MLFLOW_TRACKING_URI"]


def many_runs(home: Path) -> dict[str, float]:
    """Seconds that ``runs.py list`` takes over ten thousand runs."""
    template = end(begin(home, "template")).parent
    files = {name: (template / name).read_text() for name in ("journal.jsonl", "record.json")}
    for number in range(RUNS):
        folder = home / "runs" / f"{number:012x}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        (folder / "delivery.json").write_text("{}")

    def measure() -> float:
        began = time.perf_counter()
        command = [sys.executable, str(ROOT / "scripts" / "runs.py"), "list"]
        listing = subprocess.run(
            command, env=os.environ | {"DPEXP_HOME": str(home)}, capture_output=True, check=True
        )
        assert listing.stdout.count(b"\n") > RUNS
        return time.perf_counter() - began

    return repeated(measure)


MAIN = """
import json, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import psutil
from measure import begin, end
from dpexp.tracking.process.uploader import Uploader
home, steps = Path(sys.argv[3]), int(sys.argv[4])
main = psutil.Process()
uploader = Uploader.start(home)
worker = psutil.Process(uploader.pid)
journal = begin(home, "million")
uploader.open(journal.path)
memory, began = [], time.perf_counter()
for number in range(steps):
    journal.extend({"steps.time_ms": [0.25], "steps.loss": [1.0], "steps.samples": [30]})
    if (number + 1) % 2000 == 0:
        journal.flush(); uploader.read_on(); time.sleep(float(sys.argv[5]))
    if (number + 1) % (steps // 10) == 0:
        memory.append([number + 1, main.memory_info().rss / 1e6, worker.memory_info().rss / 1e6])
recorded = time.perf_counter() - began
path = end(journal)
closed = time.perf_counter() - began
import threading
peak = [0.0]
def watch():
    while True:
        try: peak[0] = max(peak[0], worker.memory_info().rss / 1e6)
        except psutil.Error: return
        time.sleep(0.1)
threading.Thread(target=watch, daemon=True).start()
delivery = uploader.finish(3600)
delivered = time.perf_counter() - began
psutil.wait_procs([worker], timeout=600)
def high(pid):
    return int(next(l for l in open(f"/proc/{pid}/status") if l.startswith("VmHWM")).split()[1]) / 1e3
print(json.dumps({"memory": memory, "recorded_s": recorded, "closed_s": closed,
    "delivered_s": delivered, "complete": delivery.complete, "journal_mb": path.stat().st_size / 1e6,
    "main_peak_mb": high("self"), "uploader_peak_mb": peak[0]}))
"""


def million(home: Path, steps: int) -> dict[str, Any]:
    """One run, recorded and delivered by real processes, and their memory meanwhile."""
    command = [sys.executable, "-c", MAIN, str(ROOT), str(HERE), str(home), str(steps), str(PAUSE_S)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def at_once(home: Path, count: int) -> dict[str, Any]:
    """``count`` first runs at once into a store that does not exist yet: how many arrive, and their waits."""
    from tracking_processes import drive

    began = time.perf_counter()
    drivers = [drive("finish", steps=50, wait_s=600, DPEXP_HOME=str(home)) for _ in range(count)]
    deliveries = [driver.delivery() for driver in drivers]
    waited = sorted(delivery["waited_s"] for delivery in deliveries)
    return {
        "runs": count,
        "delivered": sum(delivery["complete"] for delivery in deliveries),
        "waited, median s": statistics.median(waited),
        "waited, most s": waited[-1],
        "all together, s": time.perf_counter() - began,
    }


def main(steps: Annotated[int, typer.Option(help="Of the long run.")] = 1_000_000) -> None:
    """Measure everything in one run, and write the figures."""
    with tempfile.TemporaryDirectory(prefix="dpexp-throughput-") as folder:
        home = Path(folder)
        for name in ("small", "served", "many", "long", "sixteen"):
            (home / name).mkdir()
        figures: dict[str, Any] = {
            "load average at the start": os.getloadavg()[0],
            "cores": psutil.cpu_count(),
            "one step in the journal, us": repeated(lambda: step_us(home / "small")),
            "journal lines a second, each synced": repeated(lambda: lines_per_s(home / "small")),
            "points a second into SQLite": repeated(lambda: points_per_s(home / "small")),
        }
        with server(home / "served"):
            figures["points a second over HTTP"] = repeated(
                lambda: points_per_s(home / "served", POINTS // 20)
            )
        figures["runs.py list over 10 000 runs, s"] = many_runs(home / "many")
        figures["at once"] = at_once(home / "sixteen", 16)
        figures["long run"] = {"steps": steps, **million(home / "long", steps)}
        figures["long run"]["listed_s"] = list_s(home / "long", "million")
        figures["long run"]["losses_in_mlflow"] = delivered_losses(home / "long")
    (HERE / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    write_figures(figures)


def write_figures(figures: dict[str, Any]) -> None:
    """Write the tables between README's marks."""
    rows = ["| | median | least | most | n |", "|---|---|---|---|---|"]
    for name, figure in figures.items():
        if isinstance(figure, dict) and "median" in figure:
            shown = " | ".join(f"{figure[key]:.3g}" for key in ("median", "least", "most"))
            rows.append(f"| {name} | {shown} | {figure['n']} |")
    rows += ["", "First runs at once into a store that is not there yet:", "", "| | |", "|---|---|"]
    rows += [f"| {key} | {value:.3g} |" for key, value in figures["at once"].items()]
    long = figures["long run"]
    rows += ["", f"A run of {long['steps']:,} steps, once:", "", "| | |", "|---|---|"]
    rows += [f"| {key} | {value:.4g} |" for key, value in long.items() if isinstance(value, float)]
    rows += [f"| losses_in_mlflow | {long['losses_in_mlflow']:,} |"]
    rows += ["", "| after steps | main, MB | uploader, MB |", "|---|---|---|"]
    rows += [f"| {at:,} | {main:.0f} | {worker:.0f} |" for at, main, worker in long["memory"]]
    rows += [
        "",
        f"{figures['cores']} cores, load average {figures['load average at the start']:.1f} before it began.",
    ]
    write_between("figures", rows)


def write_between(name: str, rows: list[str]) -> None:
    """Write lines between two of README's marks."""
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(f"<!-- begin: {name} -->")
    _, _, after = rest.partition(f"<!-- end: {name} -->")
    text = "\n".join(rows)
    readme.write_text(f"{before}<!-- begin: {name} -->\n{text}\n<!-- end: {name} -->{after}")


if __name__ == "__main__":
    typer.run(main)

"""Damage runs in every way that we know of, and count what ``runs.py check --store`` finds and repairs.

::

    processes    start runs, signal them at random moments, resume some, let a server drip its answers to some,
                 lock the store of some, keep some off the store, kill the fold of some
                 --> reap, sync, reproduce --> check, repair: no run in MLflow that was kept off, nothing left
    sweeps       signal sweeps at random moments --> resume --> every cell finished once; check
    files        flip bytes in what derives from a journal, replace it, delete MLflow runs
                 --> check, repair, check
    database     delete mlflow.db --> check, repair, check
    journals     drop, repeat and cut lines, flip bits --> check, repair, check: check still names them

``python experiments/tracking_faults/soak.py [--faults 200]`` writes ``soak.json`` and the figures of README.md.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import typer
from damage import FILES, SWEEPS_RECORDS, Damage, mlflow_runs

from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, RESERVE, SWEEP_STRATEGY

HERE = Path(__file__).resolve().parent
COMMON = ("--no-check", "--quiet", "--track-timeout", "60", "--threads", "1")
SINGLE = ("single", "--steps", "1000", *COMMON)
OFF = (*SINGLE, "--no-track")
RESUMED = ("hybrid", "--virtual", "1", "--steps", "3000", "--snapshot-every", "100", *COMMON)
SWEEP = ("single", "--devices", "cpu", "--steps", "300", "--repeat", "1", "--no-check", "--threads", "1")
RANKS = ("ddp", "--devices", "2", "--steps", "300", "--snapshot-every", "20", *COMMON)
KILLED_FOLD = """
import os, signal, sys
from pathlib import Path
from dpexp.record.journal.fold import finish
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
finish(Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Signals:
    """Signals to the processes of one run, at a moment between two parts of the time that a run takes."""

    targets: Sequence[tuple[str, signal.Signals]]
    first: float = 0.0
    last: float = 1.1
    words: Sequence[str] = SINGLE
    deletes_folder: bool = False
    resumes: bool = False
    drips: bool = False
    locks: bool = False
    kills_fold: bool = False


PROCESSES: dict[str, tuple[int, Signals]] = {
    "SIGKILL to the run": (15, Signals([("run", signal.SIGKILL)])),
    "SIGTERM to the run": (10, Signals([("run", signal.SIGTERM)])),
    "SIGINT to the run": (10, Signals([("run", signal.SIGINT)])),
    "SIGKILL to the uploader": (10, Signals([("uploader", signal.SIGKILL)])),
    "SIGKILL to both": (15, Signals([("uploader", signal.SIGKILL), ("run", signal.SIGKILL)])),
    "SIGINT then SIGTERM": (15, Signals([("run", signal.SIGINT), ("run", signal.SIGTERM)], first=0.6)),
    "SIGKILL to a rank": (10, Signals([("rank", signal.SIGKILL)], first=0.3, words=RANKS)),
    "working directory deleted": (15, Signals([], deletes_folder=True)),
    "SIGKILL to a run without tracking": (8, Signals([("run", signal.SIGKILL)], first=0.3, words=OFF)),
    "SIGTERM, then resumed": (5, Signals([("run", signal.SIGTERM)], 0.4, 0.9, RESUMED, resumes=True)),
    "SIGKILL, then resumed": (5, Signals([("run", signal.SIGKILL)], 0.4, 0.9, RESUMED, resumes=True)),
    "SIGKILL to both, then to the fold": (
        4,
        Signals([("uploader", signal.SIGKILL), ("run", signal.SIGKILL)], 0.5, 0.9, kills_fold=True),
    ),
    "answers that drip": (5, Signals([], drips=True)),
    "database that is locked": (4, Signals([], locks=True)),
}
"""{fault: (how many of 200, what is done)}. Every run starts in a folder with a ``dpexp`` that is not ours."""


@dataclass
class Tally:
    """Of one kind of fault: ``begun`` runs had a journal, ``whole`` ones needed no repair; ``lost`` is bad."""

    n: int = 0
    begun: int = 0
    whole: int = 0
    found: int = 0
    repaired: int = 0
    named: int = 0
    lost: int = 0


def start(
    home: Path,
    *words: str,
    folder: Path = ROOT,
    variables: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a script in a folder, with these environment variables added."""
    command = [sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
    env = os.environ | {"DPEXP_HOME": str(home)} | dict(variables)
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
    return subprocess.Popen(command, env=env, cwd=folder, text=True, **options)


def output(home: Path, *words: str) -> Any:
    """The JSON that ``runs.py WORDS --json`` prints; the exit code of ``check`` says only what it prints."""
    text, _ = start(home, "runs.py", *words, "--json", stdout=subprocess.PIPE).communicate()
    return json.loads(text)


def check(home: Path, *words: str) -> set[str]:
    """The runs of which ``runs.py check --store`` finds something wrong."""
    return {row["run"] for row in output(home, "check", "--store", *words)["problems"]}


# --- processes -----------------------------------------------------------------------------------


def targets(main: psutil.Process, name: str) -> list[psutil.Process]:
    """The process of a run, its uploader, or one of its ranks, if they exist at this moment."""
    try:
        if name == "run":
            return [main]
        children = main.children(recursive=True)
        if name == "rank":
            return [child for child in children if child.environ().get("RANK") == "1"]
        return [child for child in children if "dpexp.tracking.process.uploader_process" in child.cmdline()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def disturb(home: Path, name: str, fault: Signals, after_s: float) -> None:
    """Start a run of this name in a folder with another ``dpexp``, and do the fault after so many seconds."""
    folder = home / "folders" / name
    (folder / "dpexp").mkdir(parents=True)
    (folder / "dpexp" / "__init__.py").write_text("raise ImportError('of the working directory')")
    store = {"MLFLOW_TRACKING_URI": dripping_server()} if fault.drips else {}
    if fault.locks:
        store = {"MLFLOW_TRACKING_URI": locked_database(home)}
    process = start(home, "run.py", *fault.words, "--run-name", name, folder=folder, variables=store)
    main = psutil.Process(process.pid)
    time.sleep(after_s)
    uploader = targets(main, "uploader")
    for target, number in fault.targets:
        for victim in uploader if target == "uploader" else targets(main, target):
            try:
                victim.send_signal(number)
            except psutil.NoSuchProcess:
                continue
    if fault.deletes_folder:
        shutil.rmtree(folder)
    process.wait()
    psutil.wait_procs(uploader, timeout=120)
    if fault.resumes:
        runs = [row["run_id"] for row in output(home, "list") if row["name"] == name]
        for run_id in (run_id for run_id in runs if (home / "snapshots" / run_id).exists()):
            assert start(home, "run.py", *fault.words, "--run-name", name, "--resume", run_id).wait() == 0
    if fault.kills_fold:
        for run_id in [row["run_id"] for row in output(home, "list") if row["name"] == name]:
            journal = home / "runs" / run_id / JOURNAL
            subprocess.run([sys.executable, "-c", KILLED_FOLD, str(journal)], cwd=ROOT, check=False)


@functools.cache
def dripping_server() -> str:
    """The address of a server that is well by ``/health``, and whose other answers never end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            health = client.recv(1 << 16).startswith(b"GET /health")
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 if health else 10**6))
            while True:
                client.sendall(b" ")
                time.sleep(2)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@functools.cache
def locked_database(home: Path) -> str:
    """The address of a store that another process is writing, and does not end."""
    path = home / "locked" / "mlflow.db"
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as store:
        store.execute("VACUUM INTO ?", (str(path),))
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    locks.append(connection)
    return f"sqlite:///{path}"


locks: list[sqlite3.Connection] = []
"""Connections that lock a store until this process ends."""


def undisturbed_s(home: Path, words: Sequence[str], at_once: int, name: str = "undisturbed") -> float:
    """Seconds that undisturbed runs take, so many at a time; the first ones also create the store."""
    began = time.monotonic()
    runs = [start(home, "run.py", *words, "--run-name", name) for _ in range(at_once)]
    assert [run.wait() for run in runs] == [0] * at_once
    return time.monotonic() - began


def disturb_processes(home: Path, faults: int, rng: random.Random, at_once: int) -> dict[str, Tally]:
    """Start and disturb runs; afterwards ``reap`` and ``sync`` once, and ``check`` must find nothing."""
    run_s: dict[Sequence[str], float]
    run_s = {words: undisturbed_s(home, words, at_once) for words in (SINGLE, RESUMED, RANKS)}
    run_s[OFF] = undisturbed_s(home, OFF, at_once, "undisturbed without tracking")
    plan = [(kind, fault) for kind, (n, fault) in PROCESSES.items() for _ in range(scaled(n, faults))]
    rng.shuffle(plan)
    after = [run_s[tuple(fault.words)] * rng.uniform(fault.first, fault.last) for _, fault in plan]
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(disturb, home, f"fault {n}", plan[n][1], after[n]) for n in range(len(plan))]
        for n, job in enumerate(jobs):
            job.result()
            typer.echo(f"{n + 1} of {len(plan)}: {plan[n][0]} after {after[n]:.1f} s", err=True)
    off = {row["run_id"] for row in output(home, "list") if not is_tracked(home, row)}
    assert [start(home, "runs.py", command).wait() for command in ("reap", "sync")] == [0, 0]
    start(home, "runs.py", "reproduce", "--runs", "1", "undisturbed without tracking").wait()
    runs = {row["name"]: row for row in output(home, "list")}
    found = check(home)
    check(home, "--repair")
    left = found and check(home)
    tallies: dict[str, Tally] = {}
    for n, (kind, _) in enumerate(plan):
        row = runs.get(f"fault {n}")
        ended = row is not None and row["status"] in ("finished", "failed", "killed")
        is_well = row is None or (ended and not leftovers(home, row["run_id"]))
        leaked = row is not None and row["run_id"] in off and is_in_store(home, row["run_id"])
        count(tallies, kind, row and row["run_id"], found, left, leaked or not is_well)
    for row in (row for row in output(home, "list") if not is_tracked(home, row)):
        if not row["name"].startswith("fault"):
            leaked = is_in_store(home, row["run_id"])
            count(tallies, "reproduced without tracking", row["run_id"], found, left, leaked)
    return tallies


def is_tracked(home: Path, row: Mapping[str, Any]) -> bool:
    """Whether a run was started with tracking; of a journal without its first lines nothing says so."""
    return bool(load(home / "runs" / row["run_id"]).config.get("track"))


def leftovers(home: Path, run_id: str) -> list[str]:
    """What killed processes have left in the folder of a run."""
    names = [path.name for path in (home / "runs" / run_id).rglob(".*")]
    return [name for name in names if name.endswith(".tmp") or name == RESERVE]


def is_in_store(home: Path, run_id: str) -> bool:
    """Whether MLflow has a run."""
    from mlflow.tracking import MlflowClient

    return bool(mlflow_runs(MlflowClient(f"sqlite:///{home / 'mlflow.db'}"), run_id))


# --- sweeps --------------------------------------------------------------------------------------


def disturb_sweeps(home: Path, faults: int, rng: random.Random) -> dict[str, Tally]:
    """Signal sweeps of two cells and resume them: each cell must have finished once, and be in MLflow."""
    kinds: dict[str, tuple[int, signal.Signals, Sequence[str]]] = {
        "SIGTERM to a sweep": (6, signal.SIGTERM, SWEEP),
        "SIGKILL to a sweep": (6, signal.SIGKILL, SWEEP),
        "SIGKILL to a sweep without tracking": (2, signal.SIGKILL, (*SWEEP, "--no-track")),
    }
    plan = [(kind, *how[1:]) for kind, how in kinds.items() for _ in range(scaled(how[0], faults))]
    began, tallies = time.monotonic(), dict[str, Tally]()
    assert start(home, "sweep.py", *SWEEP, "--seed", "0,1").wait() == 0
    sweep_s = time.monotonic() - began
    for n, (kind, number, options) in enumerate(plan):
        words = (*options, "--seed", f"{2 * n + 2},{2 * n + 3}")
        process, after_s = start(home, "sweep.py", *words), sweep_s * rng.uniform(0.1, 0.9)
        time.sleep(after_s)
        process.send_signal(number)
        process.wait()
        if start(home, "sweep.py", *words, "--resume").wait() == 2:  # none had begun
            assert start(home, "sweep.py", *words).wait() == 0
        records = [load(path.parent) for path in (home / "runs").glob(f"*/{JOURNAL}")]
        sweep = max((each for each in records if each.strategy == "sweep"), key=lambda each: each.started)
        names = [each.name for each in records if each.parent == sweep.run_id and each.status == "finished"]
        found = {sweep.run_id} & check(home)
        is_lost = sorted(names) != sorted({*names}) or len(names) != 2 or sweep.status != "finished"
        if "--no-track" in words:
            assert [start(home, "runs.py", command).wait() for command in ("reap", "sync")] == [0, 0]
            is_lost |= is_in_store(home, sweep.run_id)
        count(tallies, kind, sweep.run_id, found, found, is_lost)
        typer.echo(f"{kind} after {after_s:.1f} s: finished {sorted(names)}", err=True)
    return tallies


# --- files ---------------------------------------------------------------------------------------


def damage_files(
    home: Path, faults: Mapping[str, tuple[int, Damage]], total: int, rng: random.Random
) -> dict[str, Tally]:
    """Damage whole runs, each in one way; ``check`` must find each, and after ``--repair`` name the rest."""
    tallies: dict[str, Tally] = {}
    todo = [(kind, damage) for kind, (n, damage) in faults.items() for _ in range(scaled(n, total))]
    while todo:
        check(home, "--repair")
        bad = check(home)
        whole = [
            row
            for row in output(home, "list")
            if (row["status"], row["delivered"]) == ("finished", "yes") and row["run_id"] not in bad
        ]
        assert whole, "no whole run is left to damage"
        pairs = []
        for row in rng.sample(whole, len(whole)):
            if suiting := next((one for one in todo if suits(one[0], row)), None):
                todo.remove(suiting)
                pairs.append((row, suiting))
        journals = [home / "runs" / row["run_id"] / JOURNAL for row, _ in pairs]
        undamaged = [journal.read_bytes() for journal in journals]
        for row, (_, damage) in pairs:
            damage(home / "runs" / row["run_id"], rng)
        found = check(home)
        check(home, "--repair")
        left = check(home)
        for row, (kind, _) in pairs:
            run = row["run_id"]
            count(tallies, kind, run, found, left, run not in found)
            typer.echo(f"{kind}: {'found' if run in found else 'LOST'}", err=True)
        for journal, content in zip(journals, undamaged, strict=True):  # for the next round
            journal.write_bytes(content)
    return tallies


def suits(kind: str, row: Mapping[str, Any]) -> bool:
    """Whether a kind of damage can be done to a run: only a sweep's folder has Records of others."""
    return row["strategy"] == SWEEP_STRATEGY or kind not in SWEEPS_RECORDS


def scaled(n: int, faults: int) -> int:
    """How many faults of a kind there are in a soak of so many, at least one."""
    return max(1, round(n * faults / 200))


def count(
    tallies: dict[str, Tally], kind: str, run: str | None, found: set[str], left: set[str], is_lost: bool
) -> None:
    tally = tallies.setdefault(kind, Tally())
    tally.n += 1
    tally.begun += run is not None
    tally.found += run in found
    tally.whole += run is not None and run not in found and not is_lost
    tally.repaired += run in found and run not in left
    tally.named += run in left
    tally.lost += is_lost


def main(
    faults: Annotated[int, typer.Option(help="How many faults.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the faults and their moments.")] = 0,
    at_once: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
) -> None:
    """Do the faults, judge each with ``runs.py check --store``, and write the figures."""
    rng, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpexp-soak-") as folder:
        home = Path(folder)
        tallies = disturb_processes(home, faults, rng, at_once) | disturb_sweeps(home, faults, rng)
        for kinds in FILES:
            tallies |= damage_files(home, kinds, faults, rng)
    result = {
        "faults": sum(tally.n for tally in tallies.values()),
        "seed": seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "kinds": {kind: asdict(tally) for kind, tally in tallies.items()},
    }
    (HERE / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    write_figures(result)


def write_figures(result: dict[str, Any]) -> None:
    """Write the table between README's marks."""
    columns = list(asdict(Tally()))
    lines = [f"| fault | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    rows = {**result["kinds"], "all": {c: sum(k[c] for k in result["kinds"].values()) for c in columns}}
    lines += [f"| {kind} | {' | '.join(str(row[c]) for c in columns)} |" for kind, row in rows.items()]
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition("<!-- begin: figures -->")
    _, _, after = rest.partition("<!-- end: figures -->")
    table = "\n".join(lines)
    readme.write_text(f"{before}<!-- begin: figures -->\n{table}\n<!-- end: figures -->{after}")


if __name__ == "__main__":
    typer.run(main)

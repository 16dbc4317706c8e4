"""Damage runs in every way that we know of, and count what ``runs.py check --store`` finds and repairs.

::

    processes    start runs, signal them at random moments --> reap, sync --> check
    files        flip bytes in what derives from a journal, delete MLflow runs --> check, repair, check
    database     delete mlflow.db --> check, repair, check
    journals     drop, repeat and cut lines, flip bits --> check, repair, check: check still names them

``python experiments/tracking_faults/soak.py [--faults 200]`` writes ``soak.json`` and the figures of README.md.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import typer

from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.tracking.delivery.ledger import LEDGER

HERE = Path(__file__).resolve().parent
COMMON = ("--no-check", "--quiet", "--track-timeout", "60", "--threads", "1")
SINGLE = ("single", "--steps", "1000", *COMMON)
RANKS = ("ddp", "--devices", "2", "--steps", "300", "--snapshot-every", "20", *COMMON)


@dataclass(frozen=True)
class Signals:
    """Signals to the processes of one run, at a moment between two parts of the time that a run takes."""

    targets: Sequence[tuple[str, signal.Signals]]
    first: float = 0.0
    last: float = 1.1
    words: Sequence[str] = SINGLE
    deletes_folder: bool = False


PROCESSES: dict[str, tuple[int, Signals]] = {
    "SIGKILL to the run": (15, Signals([("run", signal.SIGKILL)])),
    "SIGTERM to the run": (10, Signals([("run", signal.SIGTERM)])),
    "SIGINT to the run": (10, Signals([("run", signal.SIGINT)])),
    "SIGKILL to the uploader": (10, Signals([("uploader", signal.SIGKILL)])),
    "SIGKILL to both": (15, Signals([("uploader", signal.SIGKILL), ("run", signal.SIGKILL)])),
    "SIGINT then SIGTERM": (15, Signals([("run", signal.SIGINT), ("run", signal.SIGTERM)], first=0.6)),
    "SIGKILL to a rank": (10, Signals([("rank", signal.SIGKILL)], first=0.3, words=RANKS)),
    "working directory deleted": (15, Signals([], deletes_folder=True)),
}
"""{fault: (how many of 200, what is done)}. Every run starts in a folder with a ``dpexp`` that is not ours."""


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def edit(path: Path, rng: random.Random, copies: int) -> None:
    """Replace a line of a journal, other than the first and last, by so many copies of it."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(1, len(lines) - 1)
    path.write_bytes(b"".join([*lines[:at], *lines[at : at + 1] * copies, *lines[at + 1 :]]))


def cut(path: Path, rng: random.Random) -> None:
    """Cut one to three whole lines from the end of a journal; its first line stays."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: -rng.randrange(1, min(4, len(lines)))]))


def delete_mlflow_run(folder: Path, rng: random.Random) -> None:
    """Delete a run in MLflow, as its page does."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parents[1] / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, f"tags.`dpexp.run_id` = '{folder.name}'"):
        client.delete_run(run.info.run_id)


def delete_database(folder: Path, rng: random.Random) -> None:
    """Delete the database of all runs."""
    for path in folder.parents[1].glob("mlflow.db*"):
        path.unlink()


Damage = Callable[[Path, random.Random], None]
FILES: list[dict[str, tuple[int, Damage]]] = [
    {
        f"bit flipped in {RECORD}": (24, lambda folder, rng: flip(folder / RECORD, rng)),
        f"bit flipped in {LEDGER}": (12, lambda folder, rng: flip(folder / LEDGER, rng)),
        "run deleted in MLflow": (23, delete_mlflow_run),
    },
    {"database deleted": (1, delete_database)},
    {
        "line dropped from the journal": (10, lambda folder, rng: edit(folder / JOURNAL, rng, 0)),
        "line repeated in the journal": (10, lambda folder, rng: edit(folder / JOURNAL, rng, 2)),
        "lines cut from the journal's end": (10, lambda folder, rng: cut(folder / JOURNAL, rng)),
        "bit flipped in the journal": (10, lambda folder, rng: flip(folder / JOURNAL, rng)),
    },
]
"""{fault: (how many of 200, what is done to the folder of a run)}, in the order in which they are done."""


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


def start(home: Path, *words: str, folder: Path = ROOT, **options: Any) -> subprocess.Popen[str]:
    """Start a script in a folder."""
    command = [sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
    env = os.environ | {"DPEXP_HOME": str(home)}
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
    process = start(home, "run.py", *fault.words, "--run-name", name, folder=folder)
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


def undisturbed_s(home: Path, words: Sequence[str], at_once: int) -> float:
    """Seconds that undisturbed runs take, so many at a time; the first ones also create the store."""
    began = time.monotonic()
    runs = [start(home, "run.py", *words, "--run-name", "undisturbed") for _ in range(at_once)]
    assert [run.wait() for run in runs] == [0] * at_once
    return time.monotonic() - began


def disturb_processes(home: Path, faults: int, rng: random.Random, at_once: int) -> dict[str, Tally]:
    """Start and disturb runs; afterwards ``reap`` and ``sync`` once, and ``check`` must find nothing."""
    run_s = {words: undisturbed_s(home, words, at_once) for words in (SINGLE, RANKS)}
    plan = [(kind, fault) for kind, (n, fault) in PROCESSES.items() for _ in range(scaled(n, faults))]
    rng.shuffle(plan)
    after = [run_s[tuple(fault.words)] * rng.uniform(fault.first, fault.last) for _, fault in plan]
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(disturb, home, f"fault {n}", plan[n][1], after[n]) for n in range(len(plan))]
        for n, job in enumerate(jobs):
            job.result()
            typer.echo(f"{n + 1} of {len(plan)}: {plan[n][0]} after {after[n]:.1f} s", err=True)
    assert [start(home, "runs.py", command).wait() for command in ("reap", "sync")] == [0, 0]
    runs = {row["name"]: row for row in output(home, "list")}
    found = check(home)
    left = found and (check(home, "--repair"), check(home))[1]
    tallies: dict[str, Tally] = {}
    for n, (kind, _) in enumerate(plan):
        row = runs.get(f"fault {n}")
        ended = row is not None and row["status"] in ("finished", "failed", "killed")
        count(tallies, kind, row and row["run_id"], found, left, not (row is None or ended))
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
        whole = [r for r in output(home, "list") if r["status"] == "finished" and r["run_id"] not in bad]
        assert whole, "no whole run is left to damage"
        pairs = list(zip(rng.sample(whole, len(whole)), todo, strict=False))
        todo = todo[len(pairs) :]
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
        tallies = disturb_processes(home, faults, rng, at_once)
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

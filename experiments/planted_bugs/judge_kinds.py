"""Judge the bugs of all kinds by whole runs: does each run end with a VerificationError? Does every right one pass?

python experiments/planted_bugs/judge_kinds.py                          # all; writes the records and the tables
python experiments/planted_bugs/judge_kinds.py late.powersgd hidden     # this bug, and this kind; prints messages

Each run is one or two forks of a process that has imported torch: a bug that changes PyTorch for all changes it in
its own process, and no run costs an import.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE / "kinds")]

import kind_tables
import typer
from catalogue import RIGHT, Case, cases

PATIENCE_S = 120.0
"""A run that takes longer is killed, and its bug counts as not caught."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def preload() -> None:
    """Import what runs import, so far as it starts no thread."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "dpexp.run", "dpexp.engine.loop"):
        import_module(name)


def judged(case: Case, folder: Path) -> dict[str, Any]:
    """The verdict on one case, from a run in forks of this process, whose files are in the folder."""
    folder.mkdir()
    world = {"WORLD_SIZE": case.ranks, "LOCAL_WORLD_SIZE": case.ranks, "MASTER_PORT": free_port()}
    children = [
        started(case, world | {"RANK": rank, "LOCAL_RANK": rank}, folder) for rank in range(case.ranks)
    ]
    has_ended = wait_for(children)
    written = folder / "ended-0"
    if written.exists():
        found = json.loads(written.read_text())
    else:
        found = {
            "ended": "died" if has_ended else "hung",
            "message": (folder / "printed-0").read_text()[-600:],
        }
    verdict = {"kind": case.kind, "bug": case.name, "over": case.over, "passed": found["ended"] == "finished"}
    return verdict | {"is_right": is_right(case, **found)} | found


def is_right(case: Case, ended: str, message: str) -> bool:
    """Whether the run ended as it should."""
    is_refused = bool(case.refusal and re.search(case.refusal, message))
    if case.kind in (*RIGHT, "unseen"):
        return ended == "finished" or is_refused
    return ended == "VerificationError" or is_refused


def started(case: Case, world: dict[str, Any], folder: Path) -> int:
    """Start a rank of the run, or the run, in a fork; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        printed = os.open(folder / f"printed-{world['RANK']}", os.O_CREAT | os.O_WRONLY)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.environ["DPEXP_HOME"] = str(folder)
        if case.ranks > 1:
            os.environ |= {name: str(value) for name, value in world.items()} | {"MASTER_ADDR": "127.0.0.1"}
        (folder / f"ended-{world['RANK']}").write_text(json.dumps(how_it_ends(case.options)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def how_it_ends(options: dict[str, Any]) -> dict[str, str]:
    """The type of the error with which a run with these options ends, and its message."""
    from dpexp.config.errors import ConfigError
    from dpexp.config.run_config import RunConfig
    from dpexp.run import execute

    try:
        error = execute(RunConfig.from_dict(options | {"track": False}), quiet=True).error
    except ConfigError as raised:
        error = raised
    return {"ended": type(error).__name__ if error else "finished", "message": str(error or "")}


def wait_for(children: list[int]) -> bool:
    """Wait until all have ended; kill them once they take too long, and return False."""
    deadline, left = time.monotonic() + PATIENCE_S, set(children)
    while left and time.monotonic() < deadline:
        left = {child for child in left if not os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.01)
    for child in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return not left


def free_port() -> int:
    """A port that no process of this machine listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def shown(row: dict[str, Any], seconds: float) -> str:
    """A verdict as a line."""
    mark = "right" if row["is_right"] else "WRONG"
    end = f"{row['ended']}: {row['message']}" if row["message"] else row["ended"]
    return f"{mark}  {row['kind']}.{row['bug']}/{row['over']}  {seconds:.1f} s  {end}"


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="KIND, KIND.BUG or KIND.BUG/LAYOUT; all without.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    write: Annotated[bool, typer.Option(help="Write the verdicts of chosen ones too.")] = False,
) -> None:
    """Judge cases; without names all of them, and write the records and the tables."""
    os.environ |= ENVIRONMENT
    preload()
    found = cases()
    if names:
        found = [each for each in found if {each.kind, f"{each.kind}.{each.name}", str(each)} & set(names)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        judge = partial(timed, folder=Path(folder))
        rows = list(pool.map(judge, range(len(found)), found))
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")
    if write or not names:
        kind_tables.write(rows, every=not names)


def timed(number: int, case: Case, folder: Path) -> dict[str, Any]:
    """The verdict on a case, which is printed."""
    start = time.perf_counter()
    row = judged(case, folder / str(number))
    print(shown(row, time.perf_counter() - start), flush=True)
    return row


if __name__ == "__main__":
    typer.run(main)

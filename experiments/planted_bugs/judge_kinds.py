"""Judge the bugs of all kinds by whole runs: does each run end with a VerificationError?

python experiments/planted_bugs/judge_kinds.py                          # all; writes the records and the tables
python experiments/planted_bugs/judge_kinds.py late.counter hidden      # this bug and this kind; prints messages

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE / "kinds")]

PATIENCE_S = 120.0
"""A run that takes longer is killed, and its bug counts as not caught."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


def judged(case, folder: Path) -> dict[str, Any]:
    """The verdict on one case, from a run in forks of this process."""
    started, port = time.perf_counter(), free_port()
    children = []
    for rank in range(case.ranks):
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": case.ranks, "LOCAL_WORLD_SIZE": case.ranks}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        child = os.fork()
        if not child:
            run_in_child(case.options, world if case.ranks > 1 else {}, folder, rank)
        children.append(child)
    ended = wait_for(children)
    result = folder / "ended-0.json"
    found = (
        json.loads(result.read_text()) if result.exists() else {"ended": ended, "message": printed(folder)}
    )
    caught = found["ended"] == "VerificationError" or bool(
        case.refusal and re.search(case.refusal, found["message"])
    )
    row = {"kind": case.kind, "bug": case.name, "over": case.over, "caught": caught, **found}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def printed(folder: Path) -> str:
    """The end of what the first rank printed."""
    return (folder / "printed-0").read_text()[-600:]


def run_in_child(options: dict[str, Any], world: dict[str, Any], folder: Path, rank: int) -> None:
    """Run as this rank, write how it ended, and end this process."""
    try:
        printed = os.open(folder / f"printed-{rank}", os.O_CREAT | os.O_WRONLY)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.environ.update(ENVIRONMENT | {name: str(value) for name, value in world.items()})
        os.environ["DPEXP_HOME"] = str(folder)
        found = ended(options)
        (folder / f"ended-{rank}.json").write_text(json.dumps(found))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def ended(options: dict[str, Any]) -> dict[str, Any]:
    """How a run with these options ends: the type of its error, and the message."""
    from dpexp.config.errors import ConfigError
    from dpexp.config.run_config import RunConfig
    from dpexp.run import execute

    try:
        error = execute(RunConfig.from_dict(options | {"track": False}), quiet=True).error
    except ConfigError as raised:
        error = raised
    return {"ended": type(error).__name__ if error else "finished", "message": str(error or "")}


def wait_for(children: list[int]) -> str:
    """Wait until all have ended; kill them once they take too long."""
    deadline, left = time.monotonic() + PATIENCE_S, set(children)
    while left:
        for child in list(left):
            if os.waitpid(child, os.WNOHANG)[0]:
                left.discard(child)
        if left and time.monotonic() > deadline:
            for child in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)
    return "hung" if deadline == float("inf") else "died"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def preload() -> None:
    """Import what every run imports, and nothing that starts a thread."""
    import pkgutil
    from importlib import import_module

    import dpexp

    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.utils.flop_counter"):
        import_module(name)
    for module in pkgutil.walk_packages(dpexp.__path__, "dpexp."):
        if not module.name.startswith(("dpexp.tracking", "dpexp.report", "dpexp.commands", "dpexp.study")):
            import_module(module.name)


def main(words: list[str]) -> None:
    os.environ.update(ENVIRONMENT)
    preload()
    from catalogue import cases

    jobs = int(os.environ.get("JOBS", "2"))
    chosen = [
        case
        for case in cases()
        if not words
        or {case.kind, f"{case.kind}.{case.name}", f"{case.kind}.{case.name}/{case.over}"} & set(words)
    ]
    rows = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:

        def one(number: int):
            folder = Path(name) / str(number)
            folder.mkdir()
            row = judged(chosen[number], folder)
            print(
                f"{'caught' if row['caught'] else 'MISSED'}  {row['kind']}.{row['bug']}/{row['over']}  {row['seconds']} s  {row['ended']}: {row['message'][:400]}",
                flush=True,
            )
            return row

        rows = list(pool.map(one, range(len(chosen))))
    print(f"{sum(row['caught'] for row in rows)} of {len(rows)} caught")
    out = os.environ.get("OUT")
    if out:
        known = {
            (r["kind"], r["bug"], r["over"]): r
            for r in (json.loads(Path(out).read_text()) if Path(out).exists() else [])
        }
        known |= {(r["kind"], r["bug"], r["over"]): r for r in rows}
        Path(out).write_text(json.dumps(list(known.values()), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

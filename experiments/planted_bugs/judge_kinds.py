"""Judge the bugs of all kinds by whole runs: does each run end with a VerificationError? Does every right one pass?

python experiments/planted_bugs/judge_kinds.py                          # all; writes the records and the tables
python experiments/planted_bugs/judge_kinds.py late.powersgd hidden     # this bug, and this kind; prints messages

Each run is one or two forks of a process that has imported torch: a bug that changes PyTorch for all changes it in
its own process, and no run costs an import.
"""

import json
import os
import re
import sys
import tempfile
import time
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

from experiments import forked_ranks

PATIENCE_S = 120.0
"""A run that takes longer is killed, and its bug counts as not caught."""


def preload() -> None:
    """Import what runs import, so far as it starts no thread."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "dpexp.run", "dpexp.engine.loop"):
        import_module(name)


def judged(case: Case, folder: Path) -> dict[str, Any]:
    """The verdict on one case, from a run in forks of this process, whose files are in the folder."""
    folder.mkdir()
    ranks = case.ranks if case.ranks > 1 else 0
    has_ended = forked_ranks.run(ranks, partial(run, case, folder), folder, PATIENCE_S)
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


def run(case: Case, folder: Path) -> None:
    """Run a case, as one of its ranks or alone, and write how it ends."""
    os.environ["DPEXP_HOME"] = str(folder)
    (folder / f"ended-{os.environ.get('RANK', 0)}").write_text(json.dumps(how_it_ends(case.options)))


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
    os.environ |= forked_ranks.ENVIRONMENT | {"PYTHONWARNINGS": "ignore"}
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

"""The harness of the experiments that judge: it runs cases in forked ranks and keeps their verdicts in one table.

An experiment gives its ``Case``s, and a function that makes ``results.md`` from the rows of ``results.csv``:

    python experiments/NAME/judge.py                 # every case that has no row with the installed versions
    python experiments/NAME/judge.py PATTERN --again # these cases, whether they have a row or not
    python experiments/NAME/judge.py --check         # writes nothing: is results.md that of results.csv?
"""

import contextlib
import csv
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
PRELOADED = ("torch", "torch._dynamo", "torch.distributed.fsdp", "dpexp.run", "dpexp.engine.passes")
PATIENCE_S = 150.0
"""A case that takes longer is killed."""

Row = dict[str, str]


def one_line(message: str, most: int) -> str:
    """A message without paths and line breaks, cut after so many characters."""
    text = " ".join(without_paths(message).split())
    return text if len(text) <= most else f"{text[:most]}…"


def without_paths(text: str) -> str:
    """The text without the folders of this machine: files of the repository and of packages begin with their own."""
    return re.sub(rf"{re.escape(str(ROOT))}/|/[^\s\"']*/(?=torch/|site-packages/)", "", text)


@dataclass(frozen=True)
class Case:
    """One verdict to reach.

    ``run(home)`` is called in each of the ranks, or in one process without them where there are none, and
    writes into the folder ``home``. ``row(home, ended)`` makes columns of the table from it; ``ended`` is "",
    or says that the ranks died or hung, and what they printed.
    """

    name: str
    ranks: int
    packages: tuple[str, ...]
    run: Callable[[Path], None]
    row: Callable[[Path, str], Row]

    @property
    def versions(self) -> str:
        """The installed versions of the packages that the case is about."""
        return ", ".join(f"{name} {metadata.version(name)}" for name in self.packages)


# --- the table -----------------------------------------------------------------------------------


class Table:
    """The rows of ``results.csv`` by case."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = folder / "results.csv", ("case", "versions", *columns)

    def rows(self) -> dict[str, Row]:
        if not self.path.exists():
            return {}
        with self.path.open(newline="", encoding="utf-8") as file:
            return {row["case"]: row for row in csv.DictReader(file)}

    def write(self, rows: Iterable[Row]) -> None:
        with self.path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: row["case"]))


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


# --- the program ---------------------------------------------------------------------------------


def main(
    folder: Path,
    columns: Sequence[str],
    cases: Callable[[], Iterable[Case]],
    rendered: Callable[[Sequence[Row]], str],
    problems: Callable[[Sequence[Row]], list[str]] = lambda rows: [],
) -> None:
    """The command line of an experiment; ``problems(rows)`` are further ones that ``--check`` finds."""
    table, results = Table(folder, columns), folder / "results.md"

    def judge(
        patterns: Annotated[
            list[str] | None, typer.Argument(help="Names of cases, or how they begin.")
        ] = None,
        again: Annotated[
            bool, typer.Option(help="Judge cases that have a row of these versions too.")
        ] = False,
        check: Annotated[bool, typer.Option(help="Check what is committed.")] = False,
    ) -> None:
        """Judge cases, and write the tables."""
        os.chdir(ROOT)
        if check:
            return report([*_stale(table, results, rendered), *problems([*table.rows().values()])])
        os.environ |= ENVIRONMENT | QUIET
        for name in PRELOADED:
            import_module(name)
        for case in cases():
            known, is_chosen = table.rows(), not patterns or any(_fits(case.name, each) for each in patterns)
            if is_chosen and (again or known.get(case.name, {}).get("versions") != case.versions):
                start = time.perf_counter()
                row = {"case": case.name, "versions": case.versions, **verdict(case)}
                table.write((known | {case.name: row}).values())
                print(*row.values(), f"({time.perf_counter() - start:.0f} s)", sep="  ", flush=True)
        results.write_text(rendered([*table.rows().values()]), encoding="utf-8")

    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(judge)
    app()


def report(problems: Sequence[str]) -> None:
    """Print problems; exit with 1 if there are some."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    raise SystemExit(bool(problems))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern.rstrip('/')}/")


def _stale(table: Table, results: Path, rendered: Callable[[Sequence[Row]], str]) -> list[str]:
    is_same = results.read_text(encoding="utf-8") == rendered([*table.rows().values()])
    return [] if is_same else [f"{results.name}: it is not that of {table.path.name}"]


# --- running -------------------------------------------------------------------------------------


def verdict(case: Case, patience_s: float = PATIENCE_S) -> Row:
    """Run a case; its columns."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        has_ended = in_ranks(case.ranks, lambda: case.run(home), home, patience_s)
        printed = (home / "printed-0").read_text(encoding="utf-8")[-1500:]
        return case.row(
            home, f"died: {printed}" if has_ended else f"no end after {patience_s:g} s: {printed}"
        )


def in_ranks(ranks: int, call: Callable[[], None], folder: Path, patience_s: float) -> bool:
    """Call a function in forks of this process, one for each rank; False if they took longer, and were killed.

    Forks have what this process has imported. With no ranks there is one process without an environment of ranks.
    What rank N prints is in ``printed-N`` of the folder.
    """
    children = [_started(call, each, folder) for each in environments(ranks)]
    return _wait_for(children, patience_s)


def environments(ranks: int) -> list[dict[str, str]]:
    """What the environment of each rank has beside that of this process; one for a process without ranks."""
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": free_port()}
    worlds = [world | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)] or [{}]
    return [ENVIRONMENT | {name: str(value) for name, value in each.items()} for each in worlds]


def _started(call: Callable[[], None], environment: dict[str, str], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        printed = os.open(
            folder / f"printed-{environment.get('RANK', 0)}", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.environ |= environment
        call()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _wait_for(children: Iterable[int], patience_s: float) -> bool:
    deadline, left = time.monotonic() + patience_s, set(children)
    while left and time.monotonic() < deadline:
        left = {child for child in left if not os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.02)
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

"""Prove public layouts: run each cell, keep its Record, and write or check the tables that README makes of them.

python experiments/public_layouts/prove.py                      # every cell without a current Record
python experiments/public_layouts/prove.py torchtitan --again   # these, whether they have one or not
python experiments/public_layouts/prove.py --check              # writes nothing; runs what shows each wrong layout
"""

import contextlib
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # not this folder: its files are imported by their full names

import typer

from experiments import forked_ranks
from experiments.public_layouts import checks, records, tables
from experiments.public_layouts.cells import Cell, cells

PATIENCE_S = 240.0
"""A run that takes longer is killed, and its cell was not run."""

PRELOADED = ("torch", "torch._dynamo", "torch.distributed.fsdp", "dpexp.run", "dpexp.engine.passes")


def main(
    patterns: Annotated[
        list[str] | None, typer.Argument(help="PACKAGE, PACKAGE/LAYOUT or a pattern.")
    ] = None,
    again: Annotated[bool, typer.Option(help="Run cells that have a current Record too.")] = False,
    check: Annotated[bool, typer.Option(help="Check README, Records and what shows wrong layouts.")] = False,
) -> None:
    """Run cells, and write README's tables."""
    os.chdir(ROOT)
    if check:
        raise SystemExit(checks.report())
    os.environ |= forked_ranks.ENVIRONMENT | {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    chosen = [
        each
        for each in cells(*patterns or ())
        if again or not records.is_current(each, records.record_of(each))
    ]
    preload({each.package for each in chosen})
    for cell in chosen:
        start = time.perf_counter()
        records.write(cell, record_of_run(cell))
        print(f"{tables.line(cell)}  ({time.perf_counter() - start:.0f} s)", flush=True)
    tables.write()


def preload(packages: set[str]) -> None:
    """Import what the runs import, so far as it is installed and starts no thread."""
    for name in (*PRELOADED, *sorted(packages - {"pytorch"})):
        with contextlib.suppress(ImportError):
            import_module(name)


def record_of_run(cell: Cell) -> records.Record:
    """Run a cell in forks of this process; its Record, or one that says why there is no run."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        has_ended = forked_ranks.run(cell.ranks, lambda: run(cell, home), home, PATIENCE_S)
        refused, written = home / "refused", list(home.glob("runs/*/record.json"))
        if written and has_ended:
            return records.Record.load(written[0])
        if refused.exists():
            return records.without_run(cell, "ConfigError", refused.read_text())
        printed = (home / "printed-0").read_text()[-1500:]
        kind = "Died" if has_ended else "Hung"
        return records.without_run(
            cell, kind, printed if has_ended else f"no end after {PATIENCE_S:g} s: {printed}"
        )


def run(cell: Cell, home: Path) -> None:
    """Run a cell as one of its ranks."""
    from dpexp.config.errors import ConfigError
    from dpexp.run import execute

    os.environ["DPEXP_HOME"] = str(home)
    try:
        execute(cell.config, quiet=True)
    except ConfigError as error:
        (home / "refused").write_text(str(error))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()

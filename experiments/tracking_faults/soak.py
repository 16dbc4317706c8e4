"""Damage runs in every way that we know of, and count what ``runs.py check --store`` finds and repairs.

::

    processes    start runs; signal, stop, limit and disturb them at random moments, resume some
                 --> reap, sync --> check, repair: no run in MLflow that was kept off, nothing left
    sweeps       signal sweeps at random moments --> resume --> every cell finished once; check
    server       deliver runs past broken answers of an MLflow server --> sync --> check: there once
    deliveries   deliver runs past limits, signals and stores that fail --> sync --> check: there once
    files        damage what derives from a journal, delete MLflow runs --> check, repair, check
    database     delete mlflow.db --> check, repair, check
    texts        write runs of hostile texts --> list, show, report, sync, check: once, and nothing controls
    journals     damage journals --> check, repair, check: check still names them

``python experiments/tracking_faults/soak.py`` adds a line to ``faults.jsonl`` for each fault, and resumes where
it was interrupted; at the end it writes ``soak.json`` and the figures of README.md.
"""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import typer
from damage import DATABASE, DERIVED, JOURNALS
from deliveries import TO_FILE, TO_SERVER, deliver_past
from disturbances import kinds as disturbances
from files import damage_files
from hostile_texts import KINDS as TEXTS
from hostile_texts import deliver_hostile
from processes import disturb_processes
from scene import Scene
from sweeps import KINDS as SWEEPS
from sweeps import disturb_sweeps
from tally import Tally, write_figures

Batch = Callable[[Scene, Sequence[str], random.Random, Tally], None]


@dataclass(frozen=True)
class Family:
    """Faults that share a home: how many of each kind, and what does some of them and judges them together."""

    kinds: Mapping[str, int]
    home: str
    at_a_time: int
    do: Batch


def families(at_once: int) -> dict[str, Family]:
    """All families of faults."""
    processes = disturbances()
    faults = {kind: fault for kind, (_, fault) in processes.items()}
    found = {
        "processes": Family(
            {kind: n for kind, (n, _) in processes.items()},
            "processes",
            6 * at_once,
            lambda scene, todo, rng, tally: disturb_processes(scene, faults, todo, rng, tally, at_once),
        ),
        "sweeps": Family({kind: how[0] for kind, how in SWEEPS.items()}, "sweeps", 3, disturb_sweeps),
    }
    for name, deliveries in {"server": TO_SERVER, "deliveries": TO_FILE}.items():
        do = functools.partial(deliver_past, family=name, kinds=deliveries)
        found[name] = Family({k: kind.n for k, kind in deliveries.items()}, name, 10, _batch(do))
    for name, damages in {"files": DERIVED, "database": DATABASE, "journals": JOURNALS}.items():
        do = functools.partial(damage_files, family=name, faults=damages)
        found[name] = Family(
            {k: n for k, (n, _) in damages.items()}, "files", 50 if name != "database" else 1, _batch(do)
        )
    return found | {"texts": Family(TEXTS, "files", 10, deliver_hostile)}


def _batch(do: Callable[..., None]) -> Batch:
    return lambda scene, todo, rng, tally: do(scene, todo=todo, rng=rng, tally=tally)


def main(
    part: Annotated[
        float, typer.Option(help="Of the number of faults; each kind is drawn at least once.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the faults and their moments.")] = 0,
    at_once: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    minutes: Annotated[float, typer.Option(help="No faults are begun after so many.")] = 1e6,
    only: Annotated[str, typer.Option(help="These families, with commas between.")] = "",
    home: Annotated[Path | None, typer.Option(help="Where runs stay for the next call.")] = None,
) -> None:
    """Do the faults that ``faults.jsonl`` lacks, judge each with ``runs.py check --store``, and write the figures."""
    until, tally = time.monotonic() + 60 * minutes, Tally(seed)
    with tempfile.TemporaryDirectory(prefix="dpexp-soak-", ignore_cleanup_errors=True) as folder:
        for name, family in families(at_once).items():
            if not only or name in only.split(","):
                scene = Scene((home or Path(folder)).absolute() / family.home)
                scene.home.mkdir(parents=True, exist_ok=True)
                _soak(scene, name, family, part, random.Random(f"{seed} {len(tally.rows)}"), tally, until)
    write_figures(tally.rows)


def _soak(
    scene: Scene, name: str, family: Family, part: float, rng: random.Random, tally: Tally, until: float
) -> None:
    """Do the faults of a family that are missing, some at a time; a command of the judge that hangs counts too."""
    wanted = {kind: max(1, round(n * part)) for kind, n in family.kinds.items()}
    while (missing := tally.missing(wanted)) and time.monotonic() < until:
        todo, before = rng.sample(missing, min(family.at_a_time, len(missing))), len(tally.rows)
        try:
            family.do(scene, todo, rng, tally)
        except subprocess.TimeoutExpired as error:
            for kind in todo:
                tally.add(name, kind, None, how=f"the judge hangs: {error}", hangs=True)
        for row in tally.rows[before:]:
            typer.echo(f"{row['kind']}: {row['ended']}; {row['how']}", err=True)
        typer.echo(f"{name}: {len(missing)} were missing, {len(tally.rows)} done in all", err=True)


if __name__ == "__main__":
    typer.run(main)

"""Damage the files and the store of whole runs, and judge what ``check`` finds and ``--repair`` mends."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from damage import LEFTOVERS, SWEEPS_RECORDS, Damage
from scene import Scene, copies, embedded, leftovers
from tally import Tallies, Tally, scaled

from dpexp.record.journal.journal import JOURNAL, SWEEP_STRATEGY


def damage_files(
    scene: Scene, faults: Mapping[str, tuple[int, Damage]], total: int, rng: random.Random
) -> Tallies:
    """Damage whole runs, each in one way; ``check`` must find each, and after ``--repair`` name the rest."""
    tallies: Tallies = {}
    todo = [(kind, damage) for kind, (n, damage) in faults.items() for _ in range(scaled(n, total))]
    while todo:
        pairs = []
        for folder, row in _whole_runs(scene, rng):
            if suiting := next((one for one in todo if _suits(one[0], row)), None):
                todo.remove(suiting)
                pairs.append((folder, suiting))
        undamaged = [(folder / JOURNAL).read_bytes() for folder, _ in pairs]
        for folder, (_, damage) in pairs:
            damage(folder, rng)
        found = scene.check()
        scene.check("--repair")
        left = scene.check()
        for folder, (kind, _) in pairs:
            run, remains = folder.name, leftovers(folder)
            is_lost = bool(remains) if kind in LEFTOVERS else run not in found
            stored = copies(embedded(scene.home), run)
            tally = tallies.setdefault(kind, Tally())
            tally.count(
                run,
                found,
                left,
                is_lost=is_lost,
                is_doubled=stored > 1,
                leaves=bool(remains),
                hangs=scene.hangs,
            )
            typer.echo(f"{kind}: {'LOST' if is_lost else 'found'}, {stored} {remains}", err=True)
        for (folder, _), content in zip(pairs, undamaged, strict=True):  # for the next round
            (folder / JOURNAL).unlink()
            (folder / JOURNAL).write_bytes(content)
    return tallies


def _whole_runs(scene: Scene, rng: random.Random) -> list[tuple[Path, Mapping[str, Any]]]:
    """Runs of which nothing is wrong, in any order."""
    scene.check("--repair")
    bad = scene.check()
    rows = scene.output("list")
    whole = [row for row in rows if (row["status"], row["delivered"]) == ("finished", "yes")]
    whole = [row for row in whole if row["run_id"] not in bad]
    assert whole, "no whole run is left to damage"
    return [(scene.home / "runs" / row["run_id"], row) for row in rng.sample(whole, len(whole))]


def _suits(kind: str, row: Mapping[str, Any]) -> bool:
    """Whether a kind of damage can be done to a run: only a sweep's folder has Records of others."""
    return row["strategy"] == SWEEP_STRATEGY or kind not in SWEEPS_RECORDS

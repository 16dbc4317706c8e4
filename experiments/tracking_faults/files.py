"""Damage the files and the store of whole runs, and judge what ``check`` finds and ``--repair`` mends."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from copied import prepare
from damage import SWEEPS_RECORDS, UNDAMAGING, Damage
from scene import Scene, copies, embedded, leftovers
from tally import Tally

from dpexp.record.journal.journal import JOURNAL, SWEEP_STRATEGY

RUNS, SWEEPS = 50, 6
"""How many whole runs a home has, each to be damaged in one way at a time."""


def damage_files(
    scene: Scene,
    family: str,
    faults: Mapping[str, tuple[int, Damage]],
    todo: Sequence[str],
    rng: random.Random,
    tally: Tally,
) -> None:
    """Damage whole runs, each in one way; ``check`` must find each, and after ``--repair`` name the rest.

    Those for which no run is left are drawn later.
    """
    prepare(scene, RUNS, SWEEPS)
    pairs, kinds = [], list(todo)
    for folder, row in _whole_runs(scene, rng):
        if (kind := next((each for each in kinds if _suits(each, row)), None)) is not None:
            kinds.remove(kind)
            pairs.append((folder, kind))
    undamaged = [(folder / JOURNAL).read_bytes() for folder, _ in pairs]
    for folder, kind in pairs:
        faults[kind][1](folder, rng)
    found = scene.check()
    scene.check("--repair")
    left = scene.check()
    for folder, kind in pairs:
        run, remains = folder.name, leftovers(folder)
        is_lost = (run in found) == (kind in UNDAMAGING)
        stored = copies(embedded(scene.home), run)
        tally.add(
            family,
            kind,
            run,
            found,
            left,
            how=f"in MLflow {stored}; left {remains}",
            is_lost=is_lost or not stored,
            is_doubled=stored > 1,
            leaves=bool(remains),
            hangs=scene.hangs,
        )
    for (folder, _), content in zip(pairs, undamaged, strict=True):  # to be damaged again
        (folder / JOURNAL).unlink()
        (folder / JOURNAL).write_bytes(content)


def _whole_runs(scene: Scene, rng: random.Random) -> list[tuple[Path, Mapping[str, Any]]]:
    """Runs of which nothing is wrong, in any order."""
    _, bad = scene.check_and_repair()
    rows = scene.output("list")
    whole = [row for row in rows if (row["status"], row["delivered"]) == ("finished", "yes")]
    whole = [row for row in whole if row["run_id"] not in bad]
    assert whole, "no whole run is left to damage"
    return [(scene.home / "runs" / row["run_id"], row) for row in rng.sample(whole, len(whole))]


def _suits(kind: str, row: Mapping[str, Any]) -> bool:
    """Whether a kind of damage can be done to a run: sweeps are kept for what only their folders have."""
    return bool(row["strategy"] == SWEEP_STRATEGY) == (kind in SWEEPS_RECORDS)

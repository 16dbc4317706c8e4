"""Disturb the processes of runs, and judge afterwards what ``reap`` and ``sync`` have made of them."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from disturbances import Disturbance, Ending, disturb
from scene import Scene, copies, embedded, is_tracked, leftovers, wait_until_used
from tally import Tally

ENDED = ("finished", "failed", "killed")


def disturb_processes(
    scene: Scene,
    faults: Mapping[str, Disturbance],
    todo: Sequence[str],
    rng: random.Random,
    tally: Tally,
    at_once: int,
) -> None:
    """Start and disturb runs; afterwards ``reap`` and ``sync`` once, and ``check`` must find nothing.

    A run that ended before the moment was not disturbed, and is not counted.
    """
    plan = [faults[kind] for kind in todo]
    moments = [_undisturbed_s(scene, fault.words) * rng.uniform(fault.first, fault.last) for fault in plan]
    seeds = [rng.random() for _ in plan]
    scenes = [scene.of(f"fault {time.time_ns()}-{n}") for n in range(len(plan))]

    def begin(n: int) -> Ending | None:
        return disturb(scenes[n], plan[n], moments[n], random.Random(seeds[n]))

    with ThreadPoolExecutor(at_once) as pool:
        endings = list(pool.map(begin, range(len(plan))))
    codes = [scene.run("runs.py", command) for command in ("reap", "sync")]
    runs = {row["name"]: row for row in scene.output("list")}
    begun = [str(runs[here.name]["run_id"]) for here in scenes if here.name in runs]
    found, left = scene.check_and_repair(*begun) if begun else (set(), set())
    for kind, here, ending in zip(todo, scenes, endings, strict=True):
        if ending is None:
            continue
        row = runs.get(here.name)
        run = row and row["run_id"]
        stored = copies(embedded(scene.home), run) if run else 0
        status = row["status"] if row else "not begun"
        remains = ending.left + (leftovers(scene.home / "runs" / run) if run else [])
        how = f"{ending.how}; {status}; reap and sync {codes}; in MLflow {stored}; left {remains}"
        tally.add(
            "processes",
            kind,
            run,
            found,
            left,
            how=how,
            is_lost=not ending.is_well
            or bool(run and status not in ENDED)
            or bool(run and is_tracked(scene.home, run) != bool(stored)),
            is_doubled=stored > 1,
            hangs=here.hangs or scene.hangs,
            leaves=bool(remains),
        )


def _undisturbed_s(scene: Scene, words: Sequence[str]) -> float:
    """The processor time of an undisturbed run, measured once in a home; the first one creates the store."""
    path = scene.home / "undisturbed.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if (key := " ".join(words)) not in known:
        process = scene.start(*words, "--run-name", "undisturbed")
        known[key] = wait_until_used(process, math.inf)
        assert process.returncode == 0, words
        path.write_text(json.dumps(known))
    return float(known[key])

"""Disturb the processes of runs, and judge afterwards what ``reap`` and ``sync`` have made of them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import typer
from disturbances import OFF, SINGLE, Disturbance, disturb, kinds
from scene import Scene, copies, embedded, is_tracked, leftovers
from tally import Tallies, Tally, scaled

ENDED = ("finished", "failed", "killed")


def disturb_processes(
    scene: Scene, faults: int, rng: random.Random, at_once: int, until: float = math.inf
) -> Tallies:
    """Start and disturb runs; afterwards ``reap`` and ``sync`` once, and ``check`` must find nothing.

    At the time ``until``, of ``time.monotonic``, no further fault begins.
    """
    plan = [(kind, fault) for kind, (n, fault) in kinds().items() for _ in range(scaled(n, faults))]
    run_s: dict[Sequence[str], float] = {}
    for words in dict.fromkeys([SINGLE, *(tuple(fault.words) for _, fault in plan)]):
        name = "undisturbed without tracking" if words == OFF else "undisturbed"
        run_s[words] = _undisturbed_s(scene, words, at_once, name)
    rng.shuffle(plan)
    after = [run_s[tuple(fault.words)] * rng.uniform(fault.first, fault.last) for _, fault in plan]
    scenes = [scene.of(f"fault {n}") for n in range(len(plan))]
    ends: list[tuple[list[str], bool]] = []

    def begin(n: int, seed: float) -> tuple[list[str], bool] | None:
        late = time.monotonic() > until
        return None if late else disturb(scenes[n], plan[n][1], after[n], random.Random(seed))

    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(begin, n, rng.random()) for n in range(len(plan))]
        for n, job in enumerate(jobs):
            if (end := job.result()) is None:
                break
            ends.append(end)
            text = f"{n + 1} of {len(plan)}: {plan[n][0]} after {after[n]:.1f} s: {ends[n]}"
            typer.echo(f"{text}{' HANGS' if scenes[n].hangs else ''}", err=True)
    assert [scene.run("runs.py", command) for command in ("reap", "sync")] == [0, 0]
    return _judged(scene, plan, scenes, ends)


def _undisturbed_s(scene: Scene, words: Sequence[str], at_once: int, name: str) -> float:
    """Seconds that undisturbed runs take, so many at a time; the first ones also create the store."""
    began = time.monotonic()
    runs = [scene.start(*words, "--run-name", name) for _ in range(at_once)]
    assert [scene.wait(run) for run in runs] == [0] * at_once, words
    return time.monotonic() - began


def _judged(
    scene: Scene,
    plan: Sequence[tuple[str, Disturbance]],
    scenes: Sequence[Scene],
    ends: Sequence[tuple[list[str], bool]],
) -> Tallies:
    off = {row["run_id"] for row in scene.output("list") if not is_tracked(scene.home, row["run_id"])}
    scene.run("runs.py", "reproduce", "--runs", "1", "undisturbed without tracking")
    rows = scene.output("list")
    runs = {row["name"]: row for row in rows}
    found = scene.check()
    scene.check("--repair")
    left = scene.check() if found else set()
    tallies: Tallies = {}
    for (kind, _), here, (remains, is_well) in zip(plan, scenes, ends, strict=False):
        row = runs.get(here.name)
        run = row and row["run_id"]
        stored = copies(embedded(scene.home), run) if run else 0
        tallies.setdefault(kind, Tally()).count(
            run,
            found,
            left,
            is_lost=not is_well
            or bool(row and row["status"] not in ENDED)
            or bool(run and (run in off) == bool(stored)),
            is_doubled=stored > 1,
            hangs=here.hangs,
            leaves=bool(remains or (run and leftovers(scene.home / "runs" / run))),
        )
    reproduced = [row for row in rows if not is_tracked(scene.home, row["run_id"])]
    for row in (row for row in reproduced if not row["name"].startswith("fault")):
        leaked = bool(copies(embedded(scene.home), row["run_id"]))
        kind = "reproduced without tracking"
        tallies.setdefault(kind, Tally()).count(row["run_id"], found, left, is_lost=leaked)
    return tallies

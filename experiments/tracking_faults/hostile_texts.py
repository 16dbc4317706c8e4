"""Runs with hostile texts and right checksums: no command prints what controls a terminal, and none fails."""

from __future__ import annotations

import random
import re
from typing import Any

import typer
from scene import Scene, copies, embedded
from tally import Tallies, Tally, scaled

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import Journal
from dpexp.record.record import new_run_id

KIND = "hostile texts with right checksums"
FRAGMENTS = (
    *(
        "\x1b[31;8mred",
        "\x1b]0;title\x07",
        "\x1b]8;;http://evil.invalid\x1b\\",
        "\x9b31m",
        "\a\b\b",
        "\rover",
    ),
    *("\0", "\x7f", "\u202egnp.exe", "\u2028", "\ud83d", "\nerror: forged", "=cmd|' /C calc'!A0", "\t=1+1"),
    *(
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "| a | b |",
        "```\n",
        "%s%n",
        "{0}",
    ),
)
_STATED = {
    "parent",
    "schema",
    "status",
    "started",
    "ended",
    "run_id",
    "strategy",
    "config_digest",
    "name",
    "execution",
}
"""What stays; with its parent also whether a run is tracked: a run of a sweep is as its sweep says."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|Traceback")


def deliver_hostile(scene: Scene, faults: int, rng: random.Random) -> Tallies:
    """Write such runs from whole ones, read them by each command, and deliver them."""
    tally = Tally()
    names = [row["run_id"] for row in scene.output("list") if row["status"] == "finished"]
    for _ in range(scaled(6, faults)):
        facts = load(scene.home / "runs" / rng.choice(names)).to_dict()
        run = new_run_id()
        hostile = {key: _hostile(value, rng) for key, value in facts.items() if key not in _STATED}
        with Journal(scene.home / "runs", run) as journal:
            journal.set({key: facts[key] for key in _STATED - {"run_id", "schema"}} | hostile)
        finish(journal.path)
        commands = (["list"], ["show", run], ["show", run, "--json"], ["sync"], ["check", run])
        texts = {words[0]: scene.printed("runs.py", *words) for words in commands}
        texts["report"] = scene.printed("report.py", run, "--out", str(scene.home / "reports" / run))
        bad = {name: found[0] for name, text in texts.items() if (found := CONTROLS.search(text))}
        found, stored = scene.check(run), copies(embedded(scene.home), run)
        typer.echo(f"{KIND}: {bad} {found} {stored}", err=True)
        is_lost = bool(bad) or stored != 1
        tally.count(run, found, found, is_lost=is_lost, is_doubled=stored > 1, hangs=scene.hangs)
    return {KIND: tally}


def _hostile(value: Any, rng: random.Random) -> Any:
    """The value, with another text in place of most."""
    if isinstance(value, dict):
        return {key: _hostile(each, rng) for key, each in value.items()}
    if isinstance(value, list):
        return [_hostile(each, rng) for each in value]
    return "".join(rng.choices(FRAGMENTS, k=2)) if isinstance(value, str) and rng.random() < 0.7 else value

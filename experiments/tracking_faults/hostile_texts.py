"""Runs with hostile texts and right checksums: no command prints what controls a terminal, and none fails."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copied import prepare
from files import RUNS, SWEEPS
from scene import Scene, copies, embedded
from tally import Tally

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import Journal
from dpexp.record.record import new_run_id

FRAGMENTS: dict[str, tuple[str, ...]] = {
    "terminal codes in a Record": (
        *("\x1b[31;8mred", "\x1b]0;title\x07", "\x1b]8;;http://evil.invalid\x1b\\", "\x9b31m", "\a\b\b"),
        *("\rover", "\0", "\x7f", "\u202egnp.exe"),
    ),
    "formulas and forged lines in a Record": (
        *("=cmd|' /C calc'!A0", "\t=1+1", "@SUM(1)", "\nerror: forged", "\u2028", "a\n\n# heading\n"),
    ),
    "markup in a Record": (
        *("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "| a | b |", "```\n"),
        *("[a](javascript:alert(1))", "{{7*7}}"),
    ),
    "halves of surrogates and formats in a Record": (
        "\ud83d",
        "\udc00a",
        "%s%n",
        "{0}",
        "\U000e0041",
        "é名💥",
    ),
}
KINDS = dict.fromkeys(FRAGMENTS, 5)
"""{fault: how many}."""
_STATED = {
    *("parent", "schema", "status", "started", "ended", "run_id", "strategy", "config_digest", "name"),
    *("execution", "origin"),
}
"""What stays; with its parent also whether a run is tracked: a run of a sweep is as its sweep says."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|Traceback")
RUNS_MARKUP = {
    "*.html": re.compile(r"<script>alert|<img src=x|href=.?javascript:"),
    "*.md": re.compile(r"(?<!\\)<script>alert|(?<!\\)<img src=x|(?<!\\)\]\(javascript:"),
}


def deliver_hostile(scene: Scene, todo: Sequence[str], rng: random.Random, tally: Tally) -> None:
    """Write such runs from whole ones, read them by each command, and deliver them."""
    prepare(scene, RUNS, SWEEPS)
    names = [row["run_id"] for row in scene.output("list") if row["status"] == "finished"]
    made = [
        (kind, _write(scene, load(scene.home / "runs" / rng.choice(names)).to_dict(), kind, rng))
        for kind in todo
    ]
    runs = [run for _, run in made]
    words = {command: (command,) for command in ("list", "sync", "check")}
    texts = {name: scene.printed("runs.py", *command) for name, command in words.items()}
    report = scene.home / "reports" / runs[0]
    texts["report"] = scene.printed("report.py", *runs, "--out", str(report))
    texts["csv"] = scene.printed("report.py", *runs, "--csv")
    of_all = _bad(texts) + _formulas(texts["csv"]) + _runs_markup(report)
    found = scene.check(*runs)
    for kind, run in made:
        shown = {
            f"show {word}": scene.printed("runs.py", "show", run, *word.split()) for word in ("", "--json")
        }
        shown["report"] = scene.printed("report.py", run, "--out", str(scene.home / "reports" / f"of-{run}"))
        bad = of_all + _bad(shown) + _runs_markup(scene.home / "reports" / f"of-{run}")
        stored = copies(embedded(scene.home), run)
        tally.add(
            "texts",
            kind,
            run,
            found,
            found,
            how=f"controls {bad}; in MLflow {stored}",
            is_lost=bool(bad) or stored != 1,
            is_doubled=stored > 1,
            hangs=scene.hangs,
        )


def _write(scene: Scene, facts: dict[str, Any], kind: str, rng: random.Random) -> str:
    """A run with the facts of another, but for its texts; its id."""
    run = new_run_id()
    hostile = {
        key: _hostile(value, FRAGMENTS[kind], rng) for key, value in facts.items() if key not in _STATED
    }
    with Journal(scene.home / "runs", run) as journal:
        journal.set({key: facts[key] for key in _STATED - {"run_id", "schema"}} | hostile)
    finish(journal.path)
    return run


def _hostile(value: Any, fragments: Sequence[str], rng: random.Random) -> Any:
    """The value, with another text in place of most."""
    if isinstance(value, dict):
        return {key: _hostile(each, fragments, rng) for key, each in value.items()}
    if isinstance(value, list):
        return [_hostile(each, fragments, rng) for each in value]
    return "".join(rng.choices(fragments, k=2)) if isinstance(value, str) and rng.random() < 0.7 else value


def _bad(texts: dict[str, str]) -> list[str]:
    """What controls a terminal in what commands have printed."""
    return [f"{name}: {found[0]!r}" for name, text in texts.items() if (found := CONTROLS.search(text))]


def _formulas(text: str) -> list[str]:
    """What a spreadsheet would compute."""
    return [
        f"CSV: {cell!r}"
        for row in csv.reader(io.StringIO(text))
        for cell in row
        if cell.startswith(("=", "@"))
    ]


def _runs_markup(folder: Path) -> list[str]:
    """What a browser would run, in the pages of a report."""
    found = []
    for names, runs in RUNS_MARKUP.items():
        for path in sorted(folder.glob(names)):
            found += [f"{path.name}: {text!r}" for text in runs.findall(path.read_text(errors="replace"))]
    return found

"""Tally: each fault and how it ended, a line of ``faults.jsonl`` each; ``soak.json`` and README.md count them."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAULTS = HERE / "faults.jsonl"
BEGIN, END = "<!-- begin: figures -->", "<!-- end: figures -->"
COLUMNS = ("begun", "whole", "found", "repaired", "named", "lost", "doubled", "hanging", "left")
Row = Mapping[str, Any]


class Tally:
    """The faults done so far; those of an earlier call count, so that an interrupted soak resumes."""

    def __init__(self, seed: int) -> None:
        self.rows: list[Row] = []
        if FAULTS.exists():
            self.rows = [json.loads(line) for line in FAULTS.read_text().splitlines()]
        self._of_all = {"seed": seed, "commit": _commit()}

    def missing(self, kinds: Mapping[str, int]) -> list[str]:
        """The kinds of which faults are missing, each as often as it is."""
        done = Counter(row["kind"] for row in self.rows)
        return [kind for kind, n in kinds.items() for _ in range(n - done[kind])]

    def add(
        self,
        family: str,
        kind: str,
        run: str | None,
        found: Container[str] = (),
        left: Container[str] = (),
        *,
        how: str,
        is_lost: bool = False,
        is_doubled: bool = False,
        hangs: bool = False,
        leaves: bool = False,
    ) -> None:
        """One more fault; ``found`` are the runs that ``check`` named, ``left`` those after the repair."""
        ends = {
            "begun": run is not None,
            "whole": run is not None and run not in found and not is_lost,
            "found": run in found,
            "repaired": run in found and run not in left,
            "named": run in left,
            "lost": is_lost,
            "doubled": is_doubled,
            "hanging": hangs,
            "left": leaves,
        }
        true = [column for column in COLUMNS if ends[column]]
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        row = {"family": family, "kind": kind, "ended": true, "how": how, "at": at, **self._of_all}
        self.rows.append(row)
        with FAULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _commit() -> str:
    """The last commit that changed dpexp, with a mark if its files differ from it."""
    of = ("--", "dpexp", "scripts")
    changed = _git("status", "--porcelain", *of)
    return _git("log", "-1", "--format=%h", "--abbrev=10", *of) + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    root = HERE.parents[1]
    return subprocess.run(
        ["git", *words], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


def write_figures(rows: Iterable[Row]) -> None:
    """Write ``soak.json``, with a line for each kind, and the table between README's marks, for each family."""
    rows = list(rows)
    seeds, commits = sorted({row["seed"] for row in rows}), Counter(row["commit"] for row in rows)
    kinds = {kind: _counts(row for row in rows if row["kind"] == kind) for kind in _values(rows, "kind")}
    result = {"faults": len(rows), "seeds": seeds, "commits": commits, "kinds": kinds}
    (HERE / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    families = {
        f"{name} | {len(_values(those, 'kind'))}": _counts(those)
        for name in _values(rows, "family")
        if (those := [row for row in rows if row["family"] == name])
    }
    families[f"all | {len(kinds)}"] = _counts(rows)
    lines = [
        f"{len(rows)} faults of {len(kinds)} kinds, from seeds {', '.join(map(str, seeds))}:",
        "",
        f"| where | kinds | faults | {' | '.join(COLUMNS)} |",
        "|---|---|---|" + "---|" * len(COLUMNS),
        *(f"| {name} | {' | '.join(map(str, counts.values()))} |" for name, counts in families.items()),
    ]
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(lines)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def _values(rows: Iterable[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    rows = list(rows)
    return {"n": len(rows)} | {column: sum(column in row["ended"] for row in rows) for column in COLUMNS}

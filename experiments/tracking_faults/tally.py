"""Tally: what was counted of each kind of fault, and the table of it in README.md."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- begin: figures -->", "<!-- end: figures -->"


@dataclass
class Tally:
    """Of one kind of fault: ``begun`` runs had a journal, ``whole`` ones needed no repair; the last four are bad."""

    n: int = 0
    begun: int = 0
    whole: int = 0
    found: int = 0
    repaired: int = 0
    named: int = 0
    lost: int = 0
    doubled: int = 0
    hanging: int = 0
    left: int = 0

    def count(
        self,
        run: str | None,
        found: Container[str],
        left: Container[str],
        *,
        is_lost: bool = False,
        is_doubled: bool = False,
        hangs: bool = False,
        leaves: bool = False,
    ) -> None:
        """One more fault; ``found`` are the runs that ``check`` named, ``left`` those after the repair."""
        self.n += 1
        self.begun += run is not None
        self.found += run in found
        self.whole += run is not None and run not in found and not is_lost
        self.repaired += run in found and run not in left
        self.named += run in left
        self.lost += is_lost
        self.doubled += is_doubled
        self.hanging += hangs
        self.left += leaves


Tallies = dict[str, Tally]


def scaled(n: int, faults: int) -> int:
    """How many faults of a kind there are in a soak of so many, at least one."""
    return max(1, round(n * faults / 200))


def write_figures(result: dict[str, Any]) -> None:
    """Write the table between README's marks."""
    columns = list(asdict(Tally()))
    kinds = result["kinds"]
    rows = {**kinds, "all": {c: sum(kind[c] for kind in kinds.values()) for c in columns}}
    seeds = ", ".join(map(str, result["seeds"]))
    lines = [
        f"{result['faults']} faults of {len(kinds)} kinds, from seeds {seeds}, in {result['minutes']} minutes:",
        "",
        f"| fault | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
        *(f"| {kind} | {' | '.join(str(row[c]) for c in columns)} |" for kind, row in rows.items()),
    ]
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(lines)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")

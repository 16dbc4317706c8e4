"""The verdicts, and README's table of them."""

import json
import re
from collections.abc import Iterable
from typing import Any

from dpexp.study.readme import replace_block
from experiments.known_bugs.catalogue import HERE, Bug, bugs

README, VERDICTS = HERE / "README.md", HERE / "verdicts.json"
LONGEST = 600
"""So much of a message is kept."""

NAMED = (
    r"the first output in forward order that differs is of (?:the wrapper around )?(?:module '([^']*)'|the model)",
    r"the first gradient in backward order that differs is of parameter '([^']*)\.[^.']*'",
    r"after step \d+: (?:parameters|optimizer) \(([^)]*)\.[^.)]*\)",
    r": buffers \(([^)]*)\.[^.)]*\)",
)
"""Where a message names a module, the first that it does."""


def verdicts() -> dict[tuple[str, str], dict[str, Any]]:
    """The committed verdicts, by bug and side."""
    rows = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else []
    return {(row["bug"], row["side"]): row for row in rows}


def keep(rows: Iterable[dict[str, Any]]) -> None:
    """Commit verdicts in place of those of the same bugs and sides."""
    known = verdicts() | {
        (row["bug"], row["side"]): row | {"message": _short(row["message"])} for row in rows
    }
    order = [(bug.name, side) for bug in bugs() for side in ("wrong", "mended")]
    lines = ",\n".join(json.dumps(known[key]) for key in order if key in known)
    VERDICTS.write_text(f"[\n{lines}\n]\n")


def _short(message: str) -> str:
    text = " ".join(message.replace(f"{HERE.parents[1]}/", "").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def named_module(message: str) -> str:
    """The module that a message names; empty for none, and for the model itself."""
    found = [match for pattern in NAMED if (match := re.search(pattern, message))]
    return (min(found, key=lambda match: match.start())[1] or "") if found else ""


def write() -> None:
    """Write README's table."""
    README.write_text(rendered(README.read_text()))


def rendered(readme: str) -> str:
    """The README with the table of the verdicts."""
    return replace_block(readme, "verdicts", table(), README)


def table() -> str:
    """What was found, and a row for each bug."""
    known = verdicts()
    rows = [bug for bug in bugs() if (bug.name, "mended") in known]
    found = [bug for bug in rows if is_found(known[bug.name, "wrong"])]
    named = [bug for bug in found if known[bug.name, "wrong"]["named"] == bug.module]
    passed = [bug for bug in rows if known[bug.name, "mended"]["ended"] == "proven"]
    lines = [
        f"**Of {len(rows)} known bugs {len(found)} are found, and of these {len(named)} with the right module; "
        f"{len(passed)} of {len(rows)} are proven once mended.**",
        "",
        "| bug | what is wrong | run | found by | module | named | mended |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(bug, known) for bug in rows)])


def _row(bug: Bug, known: dict[tuple[str, str], dict[str, Any]]) -> str:
    wrong, mended = known[bug.name, "wrong"], known[bug.name, "mended"]
    cells = [
        f"[{bug.link.split('/', 3)[-1]}]({bug.link}), [file](bugs/{bug.name}.py)",
        bug.what,
        f"{bug.release}, {bug.mesh or 'one process'}",
        wrong["by"] if is_found(wrong) else "**not found**",
        f"`{bug.module}`",
        "yes" if wrong["named"] == bug.module else f"`{wrong['named']}`" if wrong["named"] else "no",
        f"proven, {mended['error']:.1e}" if mended["ended"] == "proven" else "**not proven**",
    ]
    return f"| {' | '.join(cells)} |"


def is_found(row: dict[str, Any]) -> bool:
    """Whether verification says that the layout is wrong."""
    return row["ended"] == "VerificationError"


def problems() -> list[str]:
    """Where README and verdicts do not fit the bugs; needs none of the packages."""
    names = {(bug.name, side) for bug in bugs() for side in ("wrong", "mended")}
    found = [f"{key}: no bug has this verdict" for key in verdicts().keys() - names]
    found += [f"{key}: it has no verdict" for key in names - verdicts().keys()]
    text = README.read_text()
    return found or ([] if text == rendered(text) else ["README: its table is not that of the verdicts"])

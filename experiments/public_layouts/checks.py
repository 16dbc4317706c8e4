"""What must be true of the committed experiment, and the scripts without dpexp that show each wrong layout."""

import subprocess
import sys
from pathlib import Path

from experiments.public_layouts import records, tables
from experiments.public_layouts.cells import HERE, cells, constants

SCRIPTS = HERE / "without_dpexp"
LONGEST_SCRIPT = 40


def problems() -> list[str]:
    """Where README, Records, findings and scripts do not fit; needs none of the packages."""
    found, names = [], {cell.name: cell for cell in cells()}
    for outcome in tables.outcomes():
        found += [f"{outcome.cell.name}: {problem}" for problem in _of_outcome(outcome)]
    stems = {records.path_of(cell) for cell in names.values()}
    found += [
        f"{path}: no cell has this Record" for path in records.RECORDS.glob("*/*.json") if path not in stems
    ]
    found += [
        f"{path.name}: no wrong cell is shown by it" for path in _scripts() if path.name not in _named()
    ]
    found += [
        f"{path.name}: longer than {LONGEST_SCRIPT} lines, or uses dpexp"
        for path in _scripts()
        if not _is_short(path)
    ]
    for path, rendered in ((tables.README, tables.rendered), (tables.FRONT, tables.rendered_front)):
        text = path.read_text()
        found += [f"{path}: it does not say what the Records do"] if text != rendered(text) else []
    return found


def _of_outcome(outcome: tables.Outcome) -> list[str]:
    cell, record, found = outcome.cell, outcome.record, []
    if record is None:
        return [] if outcome.says == tables.NOT_RUN else ["it has no Record"]
    if changed := records.changes(cell, record):
        found.append(f"its Record is of another {', '.join(changed)}")
    versions = record.environment.get("packages", {})
    found += [
        f"its Record is of {name} {version}"
        for name, version in versions.items()
        if not _is_pinned(name, version)
    ]
    if outcome.says == tables.OPEN:
        found.append("what differs, or does not run, is not judged in findings.toml")
    if outcome.says == tables.WRONG and not (SCRIPTS / outcome.finding["script"]).is_file():
        found.append("no script shows without dpexp that it is wrong")
    return found


def _is_pinned(name: str, version: str) -> bool:
    return version.partition("+")[0] == records.pinned().get(name)


def _scripts() -> list[Path]:
    return sorted(SCRIPTS.glob("*.py"))


def _named() -> set[str]:
    return {outcome.finding["script"] for outcome in tables.outcomes() if outcome.says == tables.WRONG}


def _is_short(path: Path) -> bool:
    text = path.read_text()
    return (
        len(text.splitlines()) <= LONGEST_SCRIPT and "import dpexp" not in text and "from dpexp" not in text
    )


def report() -> int:
    """Print the problems, run every script; 1 unless all is as it should be."""
    found = problems()
    for path in _scripts():
        ranks = constants(path)["RANKS"]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            str(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        print(f"{path.name}: {done.stdout.strip()}")
        if done.returncode:
            found.append(f"{path.name}: it does not show what is wrong: {done.stderr[-600:]}")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0

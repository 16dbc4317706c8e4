"""The records of the judge, and the tables that README makes of them."""

import importlib.util
import json
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDS, README = HERE / "verdicts.json", HERE / "README.md"
MARKS = ("<!-- begin: verdicts -->", "<!-- end: verdicts -->")
Rows = list[dict[str, Any]]


def write(**found: Rows) -> None:
    """Write these rows to the records, ``layouts`` or ``models``, and README's tables of all records."""
    import torch

    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {"layouts": [], "models": []}
    records |= found | {"packages": {"torch": torch.__version__} | versions("transformers", "torchvision")}
    lines = [f'"packages": {json.dumps(records["packages"])}']
    for key in ("layouts", "models"):
        lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in records[key]) + "\n]")
    RECORDS.write_text("{" + ",\n".join(lines) + "}\n")
    README.write_text(with_tables(README.read_text()))


def versions(*packages: str) -> dict[str, str]:
    """The versions of these packages, as far as they are installed."""
    return {name: metadata.version(name) for name in packages if importlib.util.find_spec(name)}


def with_tables(readme: str) -> str:
    """The README with the tables of the records between its marks."""
    before, _, rest = readme.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{text()}\n{MARKS[1]}{after}"


def text() -> str:
    """The tables of the records."""
    records = json.loads(RECORDS.read_text())
    answers = tomllib.loads((HERE / "answers.toml").read_text())
    return "\n\n".join(
        (
            answer(records),
            of_bugs(records["layouts"], answers),
            of_right(records["layouts"], answers),
            of_models(records),
        )
    )


def answer(records: dict[str, Any]) -> str:
    """What the experiment has found, in numbers."""
    bugs, right = by_layout(records["layouts"], True), by_layout(records["layouts"], False)
    caught = [name for name, rows in bugs.items() if not any(row["passed"] for row in rows)]
    named = [name for name in caught if all(row["is_right"] for row in bugs[name])]
    alarms = [row for rows in right.values() for row in rows if not row["passed"]]
    alarms += [row for row in records["models"] if not row["passed"]]
    total = sum(len(rows) for rows in right.values()) + len(records["models"])
    versions = ", ".join(f"{name} {version}" for name, version in records["packages"].items())
    return (
        f"**Of {len(bugs)} bugs, each over every number of ranks that it can have, {len(caught)} are caught, "
        f"and in {len(named)} the right module is named, with the words that describe the bug where there are "
        f"any. {total} right layouts of models give {len(alarms) or 'no'} false alarms.** ({versions})"
    )


def by_layout(rows: Rows, are_bugs: bool) -> dict[str, Rows]:
    """The verdicts of every layout with a bug, or without one."""
    found = defaultdict(list)
    for row in rows:
        if (row["is_right"] is not None) == are_bugs:
            found[row["layout"]].append(row)
    return found


def of_bugs(rows: Rows, answers: dict[str, Any]) -> str:
    """A row for each bug."""
    lines = ["| bug | ranks | caught | module | named | what is wrong |", "|---|---|---|---|---|---|"]
    for name, verdicts in sorted(
        by_layout(rows, True).items(), key=lambda item: list(answers).index(item[0])
    ):
        module, ranks = answers[name]["module"], ", ".join(str(row["ranks"]) for row in verdicts)
        shown = module if isinstance(module, str) else ", ".join(module)
        caught = sum(not row["passed"] for row in verdicts)
        named = sum(bool(row["is_right"]) for row in verdicts)
        count = len(verdicts)
        cells = [
            f"[{name}](layouts/{name}.py)",
            ranks,
            f"{caught} of {count}",
            f"`{shown}`",
            f"{named} of {count}",
        ]
        lines.append(f"| {' | '.join(cells)} | {answers[name]['bug']} |")
    return "\n".join(lines)


def of_right(rows: Rows, answers: dict[str, Any]) -> str:
    """A row for each layout that is right."""
    lines = ["| right layout | model | ranks | proven |", "|---|---|---|---|"]
    for name, verdicts in sorted(
        by_layout(rows, False).items(), key=lambda item: list(answers).index(item[0])
    ):
        ranks, proven = (
            ", ".join(str(row["ranks"]) for row in verdicts),
            sum(row["passed"] for row in verdicts),
        )
        cells = [
            f"[{name}](layouts/{name}.py)",
            answers[name]["model"],
            ranks,
            f"{proven} of {len(verdicts)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of_models(records: dict[str, Any]) -> str:
    """A row for each model: how many of its layouts are verified, over 2, 3 and 4 devices or ranks."""
    if not records["models"]:
        return ""
    layouts = list(dict.fromkeys(row["layout"] for row in records["models"]))
    lines = [f"| model | {' | '.join(layouts)} |", "|---|" + "---|" * len(layouts)]
    for model in dict.fromkeys(row["model"] for row in records["models"]):
        cells = []
        for layout in layouts:
            found = [row for row in records["models"] if (row["model"], row["layout"]) == (model, layout)]
            cells.append(f"{sum(row['passed'] for row in found)} of {len(found)}" if found else "")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)

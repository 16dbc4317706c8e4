"""The records of ``judge_kinds.py``, and the tables that READMEs make of them."""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from catalogue import KINDS, RIGHT, Case, cases
from tables import README, Rows

HERE = Path(__file__).resolve().parent
RECORDS, DETAILS = HERE / "kinds" / "verdicts.json", HERE / "kinds" / "README.md"
LONGEST = 400
"""So much of a message is recorded."""

PLACES = {
    "host": "custom on one device",
    "replicas": "custom in replicas",
    "by_replicas": "custom in replicas",
    "ranks": "custom in ranks",
    "by_hand": "custom in ranks",
    "shards": "custom in shards",
}
"""What tables call the layouts; the others have the names of strategies."""


def write(rows: Rows, every: bool = True) -> None:
    """Write these verdicts to the records, in place of ``every`` other or of those of the same cases, and the tables."""
    import torch

    known = {} if every else {_case(row): row for row in records()["cases"]}
    known |= {_case(row): row | {"message": _message(row["message"])} for row in rows}
    order = [_case(vars(case) | {"bug": case.name}) for case in cases()]
    lines = ",\n".join(json.dumps(known[each]) for each in order if each in known)
    RECORDS.write_text(f'{{"torch": "{torch.__version__}",\n"cases": [\n{lines}\n]}}\n')
    write_tables()


def write_tables() -> None:
    """Write the tables of the records to both READMEs."""
    README.write_text(between(README.read_text(), "kinds", of_kinds()))
    DETAILS.write_text(between(DETAILS.read_text(), "bugs", of_bugs()))


def records() -> dict[str, Any]:
    """The committed verdicts."""
    found: dict[str, Any] = json.loads(RECORDS.read_text())
    return found


def _case(row: Any) -> tuple[str, str, str]:
    return row["kind"], row["bug"], row["over"]


def _message(text: str) -> str:
    """The beginning of a message, without the folder of the checkout."""
    text = " ".join(text.replace(f"{HERE.parents[1]}/", "").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def between(text: str, name: str, table: str) -> str:
    """The text with the table between the marks of this name."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def of_kinds() -> str:
    """What was found, and a row for each kind with the claim on it."""
    rows = records()["cases"]
    bugs = [row for row in rows if row["kind"] not in (*RIGHT, "unseen")]
    right = [row for row in rows if row["kind"] in RIGHT]
    caught = sum(row["is_right"] for row in bugs)
    alarms = sum(not row["is_right"] for row in right)
    begun = sum(row["ended"] == "ConfigError" for row in right)
    lines = [
        f"**Of {_count(bugs)} further bugs in {len(bugs)} runs, {caught} runs end as failed verifications. Of "
        f"{len(right)} runs that are right in {_count(right)} ways, {alarms or 'none'} are refused "
        f"as wrong; {begun} do not begin, as they should, with a message that says what to do.** "
        f"(torch {records()['torch']})",
        "",
        "| kind | bugs | runs | over | caught | claim: every one is caught |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_kind(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS if kind != "unseen"]
    lines += [
        "",
        "| right | ways | runs | over | refused as wrong | claim: at most one in a hundred is refused |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_right(kind, [row for row in rows if row["kind"] == kind]) for kind in RIGHT]
    return "\n".join([*lines, "", *_unseen(rows)])


def _kind(kind: str, rows: Rows) -> str:
    caught = sum(row["is_right"] for row in rows)
    claim = "holds" if caught == len(rows) else f"contradicted: {len(rows) - caught} passed"
    cells = [_link(kind), str(_count(rows)), str(len(rows)), _places(rows), f"{caught} of {len(rows)}", claim]
    return f"| {' | '.join(cells)} |"


def _right(kind: str, rows: Rows) -> str:
    refused = sum(not row["is_right"] for row in rows)
    claim = "holds" if refused * 100 <= len(rows) else "contradicted"
    cells = [
        _link(kind),
        str(_count(rows)),
        str(len(rows)),
        _places(rows),
        f"{refused} of {len(rows)}",
        claim,
    ]
    return f"| {' | '.join(cells)} |"


def _unseen(rows: Rows) -> list[str]:
    """The bugs that no finite run sees, and what would."""
    lines = ["| what no run of these sees | what would |", "|---|---|"]
    judged = {row["bug"] for row in rows if row["kind"] == "unseen"}
    shown = {case.name: case for case in cases() if case.kind == "unseen" and case.name in judged}
    return lines + [f"| {each.what} | {' '.join(each.seen_by.split())} |" for each in shown.values()]


def _link(kind: str) -> str:
    said = (import_module(kind).__doc__ or "").partition("\n")[0]
    return f"[{said.rstrip('.')}](kinds/{kind}.py)"


def _count(rows: Rows) -> int:
    return len({(row["kind"], row["bug"]) for row in rows})


def _places(rows: Iterable[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(PLACES.get(row["over"], row["over"]) for row in rows))


def of_bugs() -> str:
    """A row for each bug and for each right model and layout, by kind."""
    rows, lines = records()["cases"], list[str]()
    for kind in (*KINDS, *RIGHT):
        lines += ["", f"## {(import_module(kind).__doc__ or '').partition(chr(10))[0].rstrip('.')}", ""]
        lines += [
            f"| [{kind}.py]({kind}.py) | over | {'as it should' if kind in RIGHT else 'caught'} | what it does |",
            "|---|---|---|---|",
        ]
        named: dict[str, Case] = {case.name: case for case in cases() if case.kind == kind}
        for name, case in named.items():
            found = [row for row in rows if row["kind"] == kind and row["bug"] == name]
            good = sum(not row["passed"] if kind == "unseen" else row["is_right"] for row in found)
            lines.append(f"| {name} | {_places(found)} | {good} of {len(found)} | {case.what} |")
    return "\n".join(lines[1:])

"""The rows of results.csv, and the tables of results.md."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from dpexp.record.record import Record
from experiments.harness import ROOT, Row, markdown, one_line

HERE = Path(__file__).resolve().parent
SCRIPTS, LONGEST_SCRIPT = HERE / "without_dpexp", 40
COLUMNS = ("verdict", "dtype", "error", "limit", "where", "cause", "message")
VERIFIED, WRONG, DEFINITION, NOT_RUN, OPEN = "verified", "wrong", "by definition", "not run", "not judged"
EXACT = 1e-12


@cache
def findings() -> dict[str, dict[str, Any]]:
    """What is known of cases that are not verified, by a pattern of their names."""
    return tomllib.loads((HERE / "findings.toml").read_text(encoding="utf-8"))


def finding(case: str) -> dict[str, Any]:
    """The first that is about a case."""
    return next((each for pattern, each in findings().items() if fnmatchcase(case, pattern)), {})


def evidence(case: str) -> Path:
    """The file of the whole Record of a case that is wrong."""
    return HERE / "wrong" / f"{case.replace('/', '.')}.json"


# --- rows ----------------------------------------------------------------------------------------


def of_record(case: str, record: Record) -> Row:
    """The row of a run that came to its end."""
    verification, error = record.verification, record.error or {}
    if record.status == "finished" and verification["passed"]:
        verdict = {"verdict": VERIFIED, "message": ""}
    else:
        verdict = row(case, error.get("type") == "VerificationError", error.get("message", ""))
    is_compared = verdict["verdict"] in (VERIFIED, WRONG, DEFINITION)
    worst = (verification.get("worst") or {}) if is_compared else {}
    found = {
        "dtype": str(verification.get("dtype", "")),
        "error": f"{worst['error']:.2g}" if worst else "0" if verdict["verdict"] == VERIFIED else "",
        "limit": f"{worst.get('limit', verification.get('tolerance', 0)):.2g}" if is_compared else "",
        "where": f"{worst.get('kind', '')} {worst.get('tensor') or ''}".strip(),
    }
    return found | verdict


def row(case: str, differs: bool, message: str) -> Row:
    """The row of a case that is not verified.

    A finding speaks of what differs, or of what did not run, and of nothing else.
    """
    known = finding(case)
    is_judged = known.get("is") in ((WRONG, DEFINITION) if differs else (NOT_RUN,))
    return {
        "verdict": known["is"] if is_judged else OPEN,
        "cause": known["cause"] if is_judged else "",
        "message": one_line(message, 300),
    }


# --- results.md ----------------------------------------------------------------------------------


def rendered(rows: Sequence[Row]) -> str:
    """results.md."""
    parts = [
        "# Results",
        "Made from [results.csv](results.csv), which has every layout and model, by judge.py.",
    ]
    parts += [answer(rows), of_packages(rows)]
    titles = ("cases", "where", "relative error", "cause", "upstream", "without dpexp")
    parts += [
        "## Wrong",
        markdown(titles, [(*_group(group), *_shown(group)) for group in grouped(rows, WRONG)]),
        "## By definition",
        markdown(titles[:4], [_group(group) for group in grouped(rows, DEFINITION)]),
        "## Not run",
        markdown(
            ("cases", "reason"),
            [
                (_names(group), group[0]["cause"] or group[0]["message"])
                for group in grouped(rows, NOT_RUN, OPEN)
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def answer(rows: Sequence[Row]) -> str:
    """The numbers of each verdict."""
    counts = Counter(each["verdict"] for each in rows)
    exact = sum(float(each["error"]) <= EXACT for each in rows if each["verdict"] == VERIFIED)
    only = Counter(finding(each["case"]).get("only") for each in rows if each["verdict"] == WRONG)
    parts = "".join(f", {count} of them {where} only" for where, count in only.items() if where)
    judged = len(rows) - counts[NOT_RUN] - counts[OPEN]
    return (
        f"**Of {judged} layouts that were compared, {counts[VERIFIED]} are verified, {exact} of them with errors below {EXACT:g}, "
        f"the others within their measured rounding, which is larger. {counts[WRONG]} are wrong{parts}. {counts[DEFINITION]} compute "
        f"something else by definition. {counts[NOT_RUN] + counts[OPEN]} more could not be run.**"
    )


def of_packages(rows: Sequence[Row]) -> str:
    """The numbers of each package."""
    packages: dict[str, list[Row]] = {}
    for each in rows:
        packages.setdefault(each["case"].split("/")[0], []).append(each)
    titles = ("package", "versions", "layouts", "models", VERIFIED, WRONG, DEFINITION, NOT_RUN)
    lines = []
    for package, of_package in packages.items():
        counts = Counter(each["verdict"] for each in of_package)
        names = [len({each["case"].split("/")[part] for each in of_package}) for part in (1, 2)]
        numbers = (*names, *(counts[verdict] for verdict in (VERIFIED, WRONG, DEFINITION)))
        not_run = counts[NOT_RUN] + counts[OPEN]
        versions = "; ".join(sorted({each["versions"] for each in of_package}))
        lines.append((f"[{package}](layouts/{package}_layouts.py)", versions, *map(str, (*numbers, not_run))))
    return markdown(titles, lines)


def grouped(rows: Sequence[Row], *verdicts: str) -> list[list[Row]]:
    """Rows with these verdicts by what is said of them."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        if each["verdict"] in verdicts:
            known = finding(each["case"])
            key = str(known.get("cause") or each["message"]), str(known.get("script"))
            groups.setdefault(key, []).append(each)
    return list(groups.values())


def _names(group: Sequence[Row]) -> str:
    return ", ".join(each["case"] for each in group)


def _group(group: Sequence[Row]) -> tuple[str, ...]:
    """The cases, where they differ most, by how much, and why."""
    known = finding(group[0]["case"])
    where = list(dict.fromkeys(each["where"] for each in group))
    errors = sorted(float(each["error"]) for each in group)
    sizes = list(dict.fromkeys(f"{error:.1e}" for error in (errors[0], errors[-1])))
    places = f"`{where[0]}`" + (f" and {len(where) - 1} more" if len(where) > 1 else "")
    return _names(group), known.get("where", places), known.get("size", " to ".join(sizes)), known["cause"]


def _shown(group: Sequence[Row]) -> tuple[str, str]:
    """The report upstream, and the script that shows it without dpexp."""
    known = finding(group[0]["case"])
    link, script = str(known["upstream"]), str(known["script"])
    report = f"[{link.split('/', 3)[-1]}]({link})" if link.startswith("https://") else link
    return report, f"[{script}](without_dpexp/{script})"


# --- the check -----------------------------------------------------------------------------------


def problems(rows: Sequence[Row]) -> list[str]:
    """Where rows, findings, evidence, scripts and pinned versions do not fit; needs none of the packages."""
    wrong = [each["case"] for each in rows if each["verdict"] == WRONG]
    found = [f"{each['case']}: it is not judged in findings.toml" for each in rows if each["verdict"] == OPEN]
    found += [f"{case}: it has no Record in wrong/" for case in wrong if not evidence(case).is_file()]
    kept = {evidence(case) for case in wrong}
    found += [f"{path.name}: it is not wrong" for path in HERE.glob("wrong/*.json") if path not in kept]
    shown, scripts = {finding(case)["script"] for case in wrong}, {path.name for path in SCRIPTS.glob("*.py")}
    found += [f"{name}: no case is shown by it, or it is missing" for name in shown ^ scripts]
    for path in SCRIPTS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > LONGEST_SCRIPT or "dpexp." in text.replace("without dpexp.", ""):
            found.append(f"{path.name}: it is longer than {LONGEST_SCRIPT} lines, or uses dpexp")
    pinned = (HERE / "requirements.txt").read_text() + (ROOT / "requirements.lock").read_text()
    versions = {each for row in rows for each in row["versions"].split(", ")}
    found += [
        f"{each}: not pinned in requirements.txt"
        for each in versions
        if each.replace(" ", "==").partition("+")[0] not in pinned.replace("+cpu", "")
    ]
    return found

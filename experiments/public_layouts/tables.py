"""README's tables, made from the Records of all cells and from what is known of those that are not proven."""

import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from dpexp.record.record import Record
from dpexp.report.markdown import escape
from dpexp.study.readme import replace_block
from experiments.public_layouts import records
from experiments.public_layouts.cells import HERE, VERSIONS, Cell, cells

README, FINDINGS = HERE / "README.md", HERE / "findings.toml"
FRONT = HERE.parents[1] / "README.md"
"""Which has the answer in one sentence."""
PROVEN, WRONG, DEFINITION, NOT_RUN, OPEN = "proven", "wrong", "by definition", "not run", "not judged"
NOT_REPORTED = "not reported"
OWN_ROWS = "each rank writes from its own rows"
"""What a run's note says where buffers are those of a rank's rows."""


@dataclass(frozen=True)
class Outcome:
    """What is said of a cell, from its Record and from ``finding``, the entry of findings.toml that is about it."""

    cell: Cell
    record: Record | None
    finding: dict[str, Any]

    @cached_property
    def is_proven(self) -> bool:
        return (
            self.record is not None
            and self.record.status == "finished"
            and bool(self.record.verification["passed"])
        )

    @cached_property
    def differs(self) -> bool:
        """Whether the run ended because the layout does not compute what a single device computes."""
        return self.record is not None and (self.record.error or {}).get("type") == "VerificationError"

    @property
    def says(self) -> str:
        """The word for it. A finding speaks of what differs, or of what did not run, and of nothing else."""
        if self.is_proven:
            return PROVEN
        if self.record is None and self.finding:
            return NOT_RUN
        wanted = (WRONG, DEFINITION) if self.differs else (NOT_RUN,)
        return self.finding["is"] if self.finding.get("is") in wanted else OPEN

    @property
    def error(self) -> float:
        """The largest relative error that its verification found."""
        return float((self.record.verification.get("worst") or {}).get("error", 0.0)) if self.record else 0.0

    @property
    def where(self) -> str:
        """The kind and the name of the tensor with that error, or what the finding says."""
        if self.finding.get("where"):
            return str(self.finding["where"])
        worst = (self.record.verification.get("worst") or {}) if self.record else {}
        return (
            f"{worst.get('kind', '')} `{worst['tensor']}`" if worst.get("tensor") else worst.get("kind", "")
        )

    @property
    def shown(self) -> str:
        """A table's entry."""
        if self.is_proven and self.record is not None:
            return f"{self.error:.1e}" + (" †" if OWN_ROWS in self.record.verification["note"] else "")
        return f"**{self.says}**" if self.differs else self.says


def outcomes(chosen: Iterable[Cell] | None = None) -> list[Outcome]:
    """The outcome of each cell, of all without some chosen."""
    found = findings()
    return [
        Outcome(cell, records.record_of(cell), _finding(found, cell))
        for cell in (cells() if chosen is None else chosen)
    ]


def findings() -> dict[str, dict[str, Any]]:
    """What is known of cells that are not proven, by a pattern of their names."""
    return tomllib.loads(FINDINGS.read_text())


def _finding(found: dict[str, dict[str, Any]], cell: Cell) -> dict[str, Any]:
    return next((entry for pattern, entry in found.items() if fnmatchcase(cell.name, pattern)), {})


def line(cell: Cell) -> str:
    """A cell's outcome, with what its run said."""
    [found] = outcomes([cell])
    said = (found.record.error or {}).get("message", "") if found.record else ""
    return f"{cell.name}: {found.says} {found.error:.1e} {found.where} {said}"


def write() -> None:
    """Write README's tables, and the sentence of the repository's README."""
    README.write_text(rendered(README.read_text()))
    FRONT.write_text(rendered_front(FRONT.read_text()))


def rendered_front(readme: str) -> str:
    """The repository's README with the numbers of the Records."""
    found = [each for each in outcomes() if each.says not in (NOT_RUN, OPEN)]
    proven, wrong = ([each for each in found if each.says == word] for word in (PROVEN, WRONG))
    packages = {each.cell.package for each in found}
    block = (
        f"Layouts of others are proven as well: of {len(found)} layouts of models that {len(packages)} released packages make, "
        f"PyTorch, torchtitan and Transformers among them, {len(proven)} compute what a single device computes and "
        f"{len(wrong)} are silently wrong{_only(wrong)} ([which, and how it was shown](experiments/public_layouts/README.md))."
    )
    return replace_block(readme, "public layouts", textwrap.fill(block, 118, break_on_hyphens=False), FRONT)


def rendered(readme: str) -> str:
    """The README with the tables of the Records."""
    found = outcomes()
    for name, block in (
        ("answer", answer(found)),
        ("cells", of_cells(found)),
        ("findings", of_findings(found)),
    ):
        readme = replace_block(readme, name, block, README)
    return readme


def answer(found: Sequence[Outcome]) -> str:
    """The numbers of each outcome, and the largest error of those that are proven."""
    counts = {
        word: sum(each.says == word for each in found) for word in (PROVEN, WRONG, DEFINITION, NOT_RUN, OPEN)
    }
    largest = max((each.error for each in found if each.is_proven), default=0.0)
    return (
        f"**Of {len(found)} layouts, {counts[PROVEN]} are proven, with errors of at most {largest:.1e}; {counts[WRONG]} are wrong{_only(found)}; "
        f"{counts[DEFINITION]} compute something else by definition; {counts[NOT_RUN]} were not run"
        + (f"; {counts[OPEN]} are not judged yet" if counts[OPEN] else "")
        + ".**"
    )


def _only(found: Iterable[Outcome]) -> str:
    """How many of the wrong ones are so in some types only."""
    types = Counter(each.finding["only"] for each in found if each.says == WRONG and "only" in each.finding)
    return "".join(f", {count} of them {where} only" for where, count in types.items())


def of_cells(found: Sequence[Outcome]) -> str:
    """A table for each package: its layouts and models, the more numerous as rows."""
    parts = []
    for package in VERSIONS:
        of_package = [each for each in found if each.cell.package == package]
        if of_package:
            versions = sorted(
                {_versions(each.record) for each in of_package if each.record} or {"no Record yet"}
            )
            parts += [f"### {package}: {'; '.join(versions)}", _grid(of_package)]
    return "\n\n".join(parts)


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in record.environment.get("packages", {}).items())


def _grid(found: Sequence[Outcome]) -> str:
    layouts, models = (
        list(dict.fromkeys(getattr(each.cell, key) for each in found)) for key in ("layout", "model")
    )
    entries = {(each.cell.layout, each.cell.model): each.shown for each in found}
    links = [f"[{name}](layouts/{found[0].cell.package}/{name}.py)" for name in layouts]
    if len(layouts) >= len(models):
        rows = [
            (link, *(entries.get((name, model), "") for model in models))
            for link, name in zip(links, layouts, strict=True)
        ]
        return _table(("layout", *models), rows)
    rows = [(model, *(entries.get((name, model), "") for name in layouts)) for model in models]
    return _table(("model", *links), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def of_findings(found: Sequence[Outcome]) -> str:
    """Tables of what is wrong, of what is a matter of definition, and of what was not run."""
    wrong = [
        (
            each.cell.name,
            each.where,
            _size(each),
            each.finding["cause"],
            _upstream(each.finding),
            _script(each.finding),
        )
        for each in found
        if each.says == WRONG
    ]
    defined = [
        (each.cell.name, each.where, _size(each), each.finding["cause"])
        for each in found
        if each.says == DEFINITION
    ]
    causes: dict[str, list[str]] = {}
    for each in found:
        if each.says in (NOT_RUN, OPEN):
            causes.setdefault(_reason(each), []).append(each.cell.name)
    return "\n\n".join(
        _table(titles, rows)
        for titles, rows in (
            (("wrong", "where", "relative error", "cause", "upstream", "without dpexp"), wrong),
            (("by definition", "where", "relative error", "why"), defined),
            (("not run", "reason"), [(", ".join(names), cause) for cause, names in causes.items()]),
        )
        if rows
    )


def _size(outcome: Outcome) -> str:
    """How wrong it is, as its run or the finding says."""
    return str(outcome.finding.get("size") or f"{outcome.error:.1e}")


def _reason(outcome: Outcome) -> str:
    if outcome.record is None:
        return "Not run yet." if outcome.finding.get("is") != NOT_RUN else str(outcome.finding["cause"])
    return outcome.finding.get("cause") or _said(outcome)


def _said(outcome: Outcome) -> str:
    message = (outcome.record.error or {}).get("message", "") if outcome.record else "no Record yet"
    return escape(message[:200].replace("\n", " "))


def _upstream(finding: dict[str, Any]) -> str:
    link = finding["upstream"]
    return link if link == NOT_REPORTED else f"[{link.split('/', 3)[-1]}]({link})"


def _script(finding: dict[str, Any]) -> str:
    return f"[{finding['script']}](without_dpexp/{finding['script']})"

"""An experiment's README: the lesson is written by hand, what it says of results is made from Records.

Between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` stand the blocks ``answer``, ``results`` and
``setup``; ``figure.png`` lies beside. ``problems`` says what of it no longer is what the Records give.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config import ConfigError, RunConfig
from dpexp.record import Record
from dpexp.report import units
from dpexp.report.render.markdown import escape, table
from dpexp.report.sections import Table
from dpexp.study import claims, metrics
from dpexp.study.claims import Verdict
from dpexp.study.experiment import (
    CONFIG,
    HOLDS,
    README,
    RECORDS,
    SUMS,
    Experiment,
    Measured,
    differences,
    load,
    measured,
    slot,
    sums,
)

FIGURE = "figure.png"
BLOCKS = ("answer", "results", "setup")
_FIGURE_OF = re.compile(r"\{(value|ratio) ([\w:]+) ([\w-]+)(?: ([\w-]+))?\}")


@dataclass
class Page:
    """What the committed Records of an experiment say; ``kind`` is the kind of machine told first."""

    experiment: Experiment

    @cached_property
    def kinds(self) -> list[str]:
        return self.experiment.kinds()

    def cells(self, kind: str) -> dict[str, list[Measured]]:
        return measured(self.experiment.folder / RECORDS / kind)[0]

    @cached_property
    def first(self) -> dict[str, list[Measured]]:
        """The runs on the first kind of machine: those that the answer is about."""
        return self.cells(self.kinds[0]) if self.kinds else {}

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return claims.judge(self.experiment, self.first)

    # --- blocks ---

    def block(self, name: str) -> str:
        """The Markdown of a block."""
        makers: dict[str, Callable[[], str]] = {
            "answer": self.answer,
            "results": self.results,
            "setup": self.setup,
        }
        return makers[name]()

    def answer(self) -> str:
        """The answer in one sentence, with what of the claims does not hold; ``not answered`` and why.

        Not answered is a question of times of which nothing can be shown, and one whose Records no longer
        say what the claims state.
        """
        if not self.first:
            return "**Not answered:** nothing was measured yet."
        told = fill(self.experiment.answer, self.first)
        weak = [each for each in self.verdicts if each.outcome != HOLDS]
        timed = [each for each in self.verdicts if each.is_timed]
        why = "; ".join(f"“{each.claim.text}” is {each.outcome}: {each.figures}" for each in weak)
        if not all(each.is_as_stated for each in self.verdicts) or (
            timed and all(each in weak for each in timed)
        ):
            return f"**Not answered:** {escape(why)}. Measured: {told}"
        return f"**{told}**" + (f" But {escape(why)}." if weak else "")

    def results(self) -> str:
        """The figure, a table of the cells for each kind of machine, and the claims with their verdicts."""
        parts = [f"![{escape(self.experiment.figure.title)}]({FIGURE})"] if self.first else []
        for kind in self.kinds:
            cells = self.cells(kind)
            if len(self.kinds) > 1:
                parts.append(f"### On {kind}")
            parts += [table(self._table(cells)), table(_verdict_table(claims.judge(self.experiment, cells)))]
        parts.append(
            "Times are medians, with the interquartile range in brackets and the number of samples after it; "
            "intervals hold 95% of a bootstrap over runs and the steps within them. A claim about time is "
            "one about this machine."
        )
        return "\n\n".join(parts)

    def _table(self, cells: dict[str, list[Measured]]) -> Table:
        columns = self.experiment.columns
        rows = [
            (name, str(len(cells.get(name, ()))), *(metrics.cell(each, cells[name]) for each in columns))
            for name in self.experiment.runs
            if cells.get(name)
        ]
        return Table(("cell", "runs", *map(metrics.title, columns)), tuple(rows))

    def setup(self) -> str:
        """The machine, versions, lock, commit and date of each kind's Records."""
        return "\n".join(line for kind in self.kinds for line in _setup(kind, self.cells(kind)))

    # --- writing and checking ---

    def readme(self, text: str) -> str:
        """The README with its blocks made anew. Raises ConfigError where it has no place for one."""
        for name in BLOCKS:
            text = replaced(text, name, self.block(name), self.experiment.folder / README)
        return text

    def write(self) -> list[Path]:
        """Make the README's blocks and the figure anew; returns the files."""
        from dpexp.study.figure import save

        path = self.experiment.folder / README
        path.write_text(self.readme(path.read_text(encoding="utf-8")), encoding="utf-8")
        if not self.first:
            return [path]
        figure = self.experiment.folder / FIGURE
        save(self.experiment.figure, self.first, figure)
        return [path, figure]

    def problems(self) -> list[str]:
        """Everything about the committed result that is not as its Records and config say."""
        from dpexp.study.figure import is_of

        folder = self.experiment.folder
        if not self.kinds:
            return [f"{folder / RECORDS}: no Records"]
        found = [said for kind in self.kinds for said in self._records(kind)]
        text = (folder / README).read_text(encoding="utf-8") if (folder / README).is_file() else ""
        if self.readme(text) != text:
            found.append(
                f"{folder / README} is not what its Records give: python scripts/report.py {self._name()}"
            )
        if not is_of(folder / FIGURE, self.experiment.figure, self.first):
            found.append(
                f"{folder / FIGURE} is not drawn from the Records: python scripts/report.py {self._name()}"
            )
        for kind in self.kinds:
            for each in claims.judge(self.experiment, self.cells(kind)):
                if not each.is_as_stated:
                    said = f"{each.outcome} on {kind}, not {each.claim.stated}: {each.figures}"
                    found.append(f"{folder / CONFIG}: claim “{each.claim.text}”: {said}")
        return found

    def _name(self) -> str:
        return f"experiments/{self.experiment.name}"

    def _records(self, kind: str) -> list[str]:
        folder, found = self.experiment.folder / RECORDS / kind, []
        listed = folder / SUMS
        if not listed.is_file() or listed.read_text() != sums(folder):
            found.append(f"{listed}: the Records are not those that were measured: they are never edited")
        there = self.cells(kind)
        for cell, run in self.experiment.runs.items():
            rounds = [each.round for each in there.get(cell, ())]
            if rounds != list(range(1, self.experiment.repeats + 1)):
                found.append(
                    f"{folder}: cell '{cell}' has rounds {rounds}, not 1 to {self.experiment.repeats}"
                )
            for each in there.get(cell, ()):
                changed = differences(run, each.record.config) if isinstance(run, RunConfig) else []
                if changed:
                    name = f"{slot(cell, each.round)}.json"
                    found.append(f"{folder / name} is of another config: {', '.join(changed)}")
                if not (each.record.environment.get("lock") or {}).get("sha256"):
                    found.append(f"{folder / slot(cell, each.round)}.json names no lock")
        return found


def replaced(text: str, name: str, block: str, path: Path) -> str:
    """The text with what stands between the marks of a block made anew. Raises ConfigError without them."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed or begin in after:
        raise ConfigError(f"{path}: one place for '{name}' is needed: {begin} … {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"


def fill(text: str, cells: claims.Cells) -> str:
    """The text with ``{value METRIC CELL}`` and ``{ratio METRIC CELL CELL}`` as figures with their spread."""

    def figure(match: re.Match[str]) -> str:
        what, name, cell, other = match.groups()
        kind, _ = metrics.metric(name)
        lacking = [each for each in (cell, other) if each and not cells.get(each)]
        if lacking:
            return f"(not measured: {', '.join(lacking)})"
        if not kind.is_timed:
            own = metrics.value(name, cells[cell])
            return units.ratio(own / metrics.value(name, cells[other])) if what == "ratio" else kind.show(own)
        own = metrics.samples(name, cells[cell])
        found = claims.interval(own, metrics.samples(name, cells[other]) if what == "ratio" else None)
        show = units.ratio if what == "ratio" else kind.show
        return f"{show(found.value)} ({show(found.low)} to {show(found.high)})"

    return _FIGURE_OF.sub(figure, text)


def _verdict_table(verdicts: list[Verdict]) -> Table:
    rows = [
        (each.claim.text, each.outcome, each.figures, "time" if each.is_timed else "fact")
        for each in verdicts
    ]
    return Table(("claim", "here", "figures", "kind"), tuple(rows))


def _setup(kind: str, cells: dict[str, list[Measured]]) -> list[str]:
    records = metrics.records(cells)
    first = records[0]
    env = first.environment
    locks = [each.environment.get("lock") or {} for each in records]
    differs = {name for lock in locks for name in lock.get("differs") or ()}
    dirty = " with uncommitted changes" if any(_is_dirty(each) for each in records) else ""
    return [
        f"- machine: {machine(first)} ({kind}); threads of torch: {_all(records, 'threads')}",
        f"- software: Python {env.get('python')}, torch {_all(records, 'torch')}, {env.get('os')}",
        "- lock: `requirements.lock` of SHA-256 "
        + ", ".join(sorted({f"`{str(lock.get('sha256'))[:16]}…`" for lock in locks}))
        + (f", but for {', '.join(sorted(differs))}" if differs else ", nothing differs from it"),
        "- code: commit " + ", ".join(sorted({_commit(each) for each in records})) + dirty,
        f"- date: {min(each.started for each in records)[:10]}; {len(records)} runs",
    ]


def machine(record: Record) -> str:
    """The processor with its count, and the accelerators of a run's machine."""
    env = record.environment
    chips = [str(one["name"]) for one in env.get("accelerators") or []]
    return ", ".join(
        [f"{env.get('cpu')}, {env.get('cpu_count')} cores", *([units.repeated(chips, ", ")] if chips else [])]
    )


def _all(records: list[Record], key: str) -> str:
    return ", ".join(sorted({str(each.environment.get(key)) for each in records}))


def _commit(record: Record) -> str:
    return f"`{str((record.environment.get('git') or {}).get('commit'))[:12]}`"


def _is_dirty(record: Record) -> bool:
    return bool((record.environment.get("git") or {}).get("dirty"))


# --- the index -----------------------------------------------------------------------------------

INDEX_BLOCK = "index"


def index(folder: Path) -> str:
    """The table of ``experiments/README.md``: question, answer, machine, date, status of the claims."""
    rows = []
    for experiment in all_of(folder):
        page = Page(experiment)
        link = f"[{experiment.name}]({experiment.name}/)"
        if not page.first:
            rows.append(f"| {link} | {escape(experiment.question)} | not measured | - | - | - |")
            continue
        records = metrics.records(page.first)
        counted = [
            f"{n} {word}"
            for word in reversed(claims.WORST)
            if (n := sum(v.outcome == word for v in page.verdicts))
        ]
        answer = page.answer().replace("|", "\\|")
        rows.append(
            f"| {link} | {escape(experiment.question)} | {answer} | "
            f"{escape(machine(records[0]))} | {min(r.started for r in records)[:10]} | {', '.join(counted)} |"
        )
    head = (
        "| experiment | question | answer | machine | date | claims |\n| --- | --- | --- | --- | --- | --- |"
    )
    return "\n".join([head, *rows])


def with_index(folder: Path) -> str:
    """``experiments/README.md`` with its table made anew."""
    text = (folder / README).read_text(encoding="utf-8")
    return replaced(text, INDEX_BLOCK, index(folder), folder / README)


def all_of(folder: Path) -> list[Experiment]:
    """Every experiment of the folder, in the order in which the index's text names them, then by name."""
    text = (folder / README).read_text(encoding="utf-8") if (folder / README).is_file() else ""
    lesson = text.partition(f"<!-- begin: {INDEX_BLOCK} -->")[0]
    found = [load(path.parent) for path in folder.glob(f"*/{CONFIG}")]
    places = {each.name: lesson.find(f"]({each.name}/)") for each in found}
    return sorted(found, key=lambda each: (places[each.name] < 0, places[each.name], each.name))

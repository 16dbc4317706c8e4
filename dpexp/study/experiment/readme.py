"""An experiment's README: the lesson is written by hand, the results in it are made from Records.

The blocks ``answer``, ``results`` and ``setup`` stand between ``<!-- begin: NAME -->`` and
``<!-- end: NAME -->``; ``figure.png`` lies in the same folder. ``problems`` lists what does not match the
Records.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.record.record import Record
from dpexp.report import units
from dpexp.report.render.markdown import escape, table
from dpexp.report.sections import Table
from dpexp.study.experiment import claims, figure, metrics
from dpexp.study.experiment.agreement import contradictions, disagreements
from dpexp.study.experiment.claims import Verdict
from dpexp.study.experiment.experiment import (
    CHECKSUMS,
    CONFIG,
    README,
    ClaimOutcome,
    Experiment,
    RunsByCell,
    checksums,
    load,
    sweep_record,
)

FIGURE = "figure.png"
INDEX_BLOCK = "index"
INTERVALS = (
    "A time is the geometric mean of its runs' medians, with the interquartile range of all samples in "
    "brackets and their number after it; an interval is of Student's t over the runs, paired by round. A "
    "claim about time is one about this machine."
)
_PLACEHOLDER = re.compile(r"\{(value|ratio) ([\w:]+) ([\w-]+)(?: ([\w-]+))?\}")


@dataclass
class ExperimentReadme:
    """The generated parts of an experiment's README, and the checks of its committed result."""

    experiment: Experiment

    @cached_property
    def runs(self) -> dict[str, RunsByCell]:
        """{kind of machine: its runs by cell}"""
        return self.experiment.committed_runs()

    @cached_property
    def verdicts(self) -> dict[str, list[Verdict]]:
        """{kind of machine: the verdicts on the claims}"""
        return {kind: claims.judge(self.experiment, runs) for kind, runs in self.runs.items()}

    @property
    def main_runs(self) -> RunsByCell:
        """The runs on the first kind of machine: the answer is about them."""
        return next(iter(self.runs.values()), {})

    @property
    def main_verdicts(self) -> list[Verdict]:
        return next(iter(self.verdicts.values()), [])

    def answer(self) -> str:
        """The answer in one sentence with the claims that do not hold, or ``Not answered`` and why.

        A question is not answered if a verdict is not the stated one, or if all its claims are about time
        and none of them holds.
        """
        if not self.main_runs:
            return "**Not answered:** nothing was measured yet."
        answer = fill(self.experiment.answer, self.main_runs)
        weak = [verdict for verdict in self.main_verdicts if verdict.outcome != ClaimOutcome.HOLDS]
        timed = [verdict for verdict in self.main_verdicts if verdict.is_timed]
        reasons = (f"“{verdict.claim.text}” is {verdict.outcome}: {verdict.figures}" for verdict in weak)
        why = escape("; ".join(reasons))
        is_as_stated = all(verdict.is_as_stated for verdict in self.main_verdicts)
        if not is_as_stated or (timed and all(verdict in weak for verdict in timed)):
            return f"**Not answered:** {why}. Measured: {answer}"
        return f"**{answer}**" + (f" But {why}." if weak else "")

    def results(self) -> str:
        """The figure, a table of the cells for each kind of machine, and the claims with their verdicts."""
        parts = [f"![{escape(self.experiment.figure.title)}]({FIGURE})"] if self.main_runs else []
        for kind, runs in self.runs.items():
            if len(self.runs) > 1:
                parts.append(f"### On {kind}")
            cells = tuple(self._cell_row(cell, runs) for cell in self.experiment.runs if runs.get(cell))
            titles = ("cell", "runs", *map(metrics.title, self.experiment.columns))
            verdicts = tuple(
                (verdict.claim.text, verdict.outcome, verdict.figures, "time" if verdict.is_timed else "fact")
                for verdict in self.verdicts[kind]
            )
            judged = Table(("claim", "here", "figures", "kind"), verdicts)
            parts += [table(Table(titles, cells)), table(judged)]
        return "\n\n".join([*parts, INTERVALS])

    def _cell_row(self, cell: str, runs: RunsByCell) -> tuple[str, ...]:
        figures = (metrics.table_cell(name, runs[cell]) for name in self.experiment.columns)
        return (cell, str(len(runs[cell])), *figures)

    def setup(self) -> str:
        """The machine, versions, lock, commit and date of each kind's Records."""
        return "\n".join(
            line for kind, runs in self.runs.items() for line in _setup(kind, records_of(runs), _looks(runs))
        )

    def render(self, text: str) -> str:
        """The README's text with new blocks. Raises ConfigError if a block's place is missing."""
        blocks = {"answer": self.answer(), "results": self.results(), "setup": self.setup()}
        for name, block in blocks.items():
            text = replace_block(text, name, block, self.experiment.folder / README)
        return text

    def write(self) -> list[Path]:
        """Update the README's blocks and the figure; returns the files."""
        path = self.experiment.folder / README
        path.write_text(self.render(path.read_text(encoding="utf-8")), encoding="utf-8")
        if not self.main_runs:
            return [path]
        picture = self.experiment.folder / FIGURE
        figure.save(self.experiment.figure, self.main_runs, picture)
        return [path, picture]

    def problems(self) -> list[str]:
        """Every contradiction between the committed result, its Records and the config."""
        folder = self.experiment.folder
        if not self.runs:
            return [f"{self.experiment.records}: no Records"]
        update = f"python scripts/report.py experiments/{self.experiment.name}"
        found = [problem for kind in self.runs for problem in self._record_problems(kind)]
        text = _text(folder / README)
        if self.render(text) != text:
            found.append(f"{folder / README} is not what its Records give: {update}")
        if not figure.shows(folder / FIGURE, self.experiment.figure, self.main_runs):
            found.append(f"{folder / FIGURE} is not drawn from the Records: {update}")
        for kind, verdicts in self.verdicts.items():
            found += [
                f"{folder / CONFIG}: claim “{verdict.claim.text}”: {verdict.outcome} on {kind}, "
                f"not {verdict.claim.stated}: {verdict.figures}"
                for verdict in verdicts
                if not verdict.is_as_stated
            ]
        return found

    def _record_problems(self, kind: str) -> list[str]:
        folder, found = self.experiment.records / kind, []
        last = rounds_of(folder, self.experiment.repeats)
        if _text(folder / CHECKSUMS) != checksums(folder):
            found.append(f"{folder / CHECKSUMS}: the Records have changed since the sweep; never edit them")
        for cell in self.experiment.runs:
            measured = self.runs[kind].get(cell, ())
            rounds = [run.round for run in measured]
            if rounds != list(range(1, last + 1)):
                found.append(f"{folder}: cell '{cell}' has rounds {rounds}, not 1 to {last}")
            for run in measured:
                path = folder / f"{run.name}.json"
                if changed := self.experiment.changed_fields(cell, run.record.config):
                    found.append(f"{path} was made with another config: {', '.join(changed)}")
                if not (run.record.environment.get("lock") or {}).get("sha256"):
                    found.append(f"{path} names no lock")
                found += [f"{path}: {problem}" for problem in contradictions(run.record)]
            found += [f"{folder}: {problem}" for problem in disagreements([run.record for run in measured])]
        return found


def rounds_of(folder: Path, repeats: int) -> int:
    """How many rounds the sweep of these Records planned, or ran until its claims were decided."""
    sweep = sweep_record(folder)
    return int(sweep.summary.get("rounds") or sweep.config.get("repeats") or repeats)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def replace_block(text: str, name: str, block: str, path: Path) -> str:
    """The text with a new block between its marks. Raises ConfigError unless the marks stand there once."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed or begin in after:
        raise ConfigError(f"{path}: write the marks of block '{name}' once: {begin} … {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"


def fill(text: str, runs: RunsByCell) -> str:
    """The text with figures in place of ``{value METRIC CELL}`` and ``{ratio METRIC CELL CELL}``."""

    def figures(match: re.Match[str]) -> str:
        what, name, cell, against = match.groups()
        missing = [cell for cell in (cell, against) if cell and not runs.get(cell)]
        if missing:
            return f"(not measured: {', '.join(missing)})"
        kind, _ = metrics.metric(name)
        show = units.ratio if what == "ratio" else kind.show
        if not kind.is_timed:
            fact = metrics.value(name, runs[cell])
            return show(fact / metrics.value(name, runs[against]) if what == "ratio" else fact)
        found = claims.interval(name, runs[cell], runs[against] if what == "ratio" else None)
        if found is None:
            return f"(not measured: {name})"
        ends = f"{show(found.low)} to {show(found.high)}" if found.is_known else "from one run each"
        return f"{show(found.value)} ({ends})"

    return _PLACEHOLDER.sub(figures, text)


def records_of(runs: RunsByCell) -> list[Record]:
    """The Records of all runs."""
    return [run.record for of_cell in runs.values() for run in of_cell]


def _looks(runs: RunsByCell) -> tuple[int, int] | None:
    return next((run.looks for of_cell in runs.values() for run in of_cell), None)


def _setup(kind: str, records: list[Record], looks: tuple[int, int] | None = None) -> list[str]:
    environment = records[0].environment
    locks = [record.environment.get("lock") or {} for record in records]
    code = [record.environment.get("git") or {} for record in records]
    differs = _distinct(name for lock in locks for name in lock.get("differs") or ())
    until = f", in {looks[0]} to {looks[1]} rounds, until all claims about time were decided" if looks else ""
    dirty = " with uncommitted changes" if any(git.get("dirty") for git in code) else ""
    sweeps = _distinct(record.parent for record in records)
    threads, torch = (
        _distinct(str(record.environment.get(key)) for record in records) for key in ("threads", "torch")
    )
    return [
        f"- machine: {machine(records[0])} ({kind}); threads of torch: {threads}",
        f"- software: Python {environment.get('python')}, torch {torch}, {environment.get('os')}",
        "- lock: `requirements.lock` of SHA-256 "
        + _distinct(f"`{str(lock.get('sha256'))[:16]}…`" for lock in locks)
        + (f", but for {differs}" if differs else ", nothing differs from it"),
        "- code: commit " + _distinct(f"`{str(git.get('commit'))[:12]}`" for git in code) + dirty,
        f"- date: {_date(records)}; {len(records)} runs of sweep {sweeps}{until}",
    ]


def _distinct(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _date(records: list[Record]) -> str:
    return min(record.started for record in records)[:10]


def machine(record: Record) -> str:
    """The processor with its count, and the accelerators of a run's machine."""
    environment = record.environment
    accelerators = [str(device["name"]) for device in environment.get("accelerators") or []]
    cpu = f"{environment.get('cpu')}, {environment.get('cpu_count')} cores"
    return f"{cpu}, {units.repeated(accelerators, ', ')}" if accelerators else cpu


def _index_row(readme: ExperimentReadme) -> tuple[str, ...]:
    experiment = readme.experiment
    link, question = f"[{experiment.name}]({experiment.name}/)", escape(experiment.question)
    if not readme.main_runs:
        return (link, question, "not measured", "-", "-", "-")
    records = records_of(readme.main_runs)
    counts = Counter(verdict.outcome for verdict in readme.main_verdicts)
    outcomes = ", ".join(f"{counts[name]} {name}" for name in reversed(ClaimOutcome) if counts[name])
    answer = readme.answer().replace("|", "\\|")
    return (link, question, answer, escape(machine(records[0])), _date(records), outcomes)


def with_index(folder: Path) -> str:
    """The text of ``experiments/README.md`` with a new table, a row for each experiment."""
    path = folder / README
    head = ("experiment", "question", "answer", "machine", "date", "claims")
    rows = [_index_row(ExperimentReadme(experiment)) for experiment in experiments_in(folder)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]
    return replace_block(path.read_text(encoding="utf-8"), INDEX_BLOCK, "\n".join(lines), path)


def experiments_in(folder: Path) -> list[Experiment]:
    """Every experiment of the folder, in the order of the links in the index's text, then by name."""
    lesson = _text(folder / README).partition(f"<!-- begin: {INDEX_BLOCK} -->")[0]
    experiments = [load(path.parent) for path in folder.glob(f"*/{CONFIG}")]
    places = {experiment.name: lesson.find(f"]({experiment.name}/)") for experiment in experiments}
    return sorted(experiments, key=lambda one: (places[one.name] < 0, places[one.name], one.name))

"""An experiment's README: the lesson is written by hand, the results in it are made from Records.

The blocks ``answer``, ``results`` and ``setup`` stand between ``<!-- begin: NAME -->`` and
``<!-- end: NAME -->``; ``figure.png`` lies in the same folder.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.record.record import Record
from dpexp.report import units
from dpexp.report.intervals import ONE_RUN
from dpexp.report.markdown import code, escape, table
from dpexp.report.section import Table
from dpexp.study import claims, figure, metrics
from dpexp.study.claims import Verdict
from dpexp.study.experiment import CONFIG, README, ClaimOutcome, Experiment
from dpexp.study.records import RunsByCell

FIGURE = "figure.png"
INTERVALS = (
    "A time is the geometric mean of its runs' medians, with the interquartile range of all samples in "
    "brackets and their number after it; an interval is of Student's t over the runs, paired by round. A "
    "claim about time is one about this machine."
)
_PLACEHOLDER = re.compile(r"\{(value|ratio) ([\w:]+) ([\w-]+)(?: ([\w-]+))?\}")


@dataclass
class ExperimentReadme:
    """The generated parts of an experiment's README."""

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
        drawn = self.experiment.figure
        parts = [f"![{escape(drawn.title)}]({FIGURE})"] if drawn and self.main_runs else []
        for kind, runs in self.runs.items():
            if len(self.runs) > 1:
                parts.append(f"### On {kind}")
            cells = tuple(self._cell_row(cell, runs) for cell in self.experiment.cells if runs.get(cell))
            titles = ("cell", "runs", *map(metrics.metric_title, self.experiment.columns))
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
        return "\n".join(line for kind, runs in self.runs.items() for line in _setup(kind, records_of(runs)))

    def render(self, text: str) -> str:
        """The README's text with new blocks. Raises ConfigError if a block's place is missing."""
        blocks = {"answer": self.answer(), "results": self.results(), "setup": self.setup()}
        for name, block in blocks.items():
            text = replace_block(text, name, block, self.experiment.folder / README)
        return text

    def problems(self) -> list[str]:
        """Where the committed result differs from what its Records and config give."""
        experiment, folder = self.experiment, self.experiment.folder
        if not self.runs:
            return [f"{experiment.records}: no Records"]
        found = [problem for kind in self.runs for problem in self._record_problems(kind)]
        update = f"python scripts/report.py experiments/{experiment.name}"
        text = (folder / README).read_text(encoding="utf-8") if (folder / README).is_file() else ""
        if self.render(text) != text:
            found.append(f"{folder / README} is not what its Records give: {update}")
        drawn = experiment.figure
        if drawn and not figure.shows(folder / FIGURE, drawn, self.main_runs):
            found.append(f"{folder / FIGURE} is not drawn from the Records: {update}")
        for kind, verdicts in self.verdicts.items():
            found += [
                f"{folder / CONFIG}: claim “{verdict.claim.text}”: {verdict.outcome} on {kind}, "
                f"not {verdict.claim.stated}: {verdict.figures}"
                for verdict in verdicts
                if not verdict.is_as_stated
            ]
        return found

    def _record_problems(self, kind: str) -> Iterator[str]:
        """The cells that lack a round, and the Records of another config."""
        folder, last = self.experiment.records / kind, self.experiment.repeats
        for cell in self.experiment.cells:
            measured = self.runs[kind].get(cell, ())
            rounds = [run.round for run in measured]
            if rounds != list(range(1, last + 1)):
                yield f"{folder}: cell '{cell}' has rounds {rounds}, not 1 to {last}"
            for run in measured:
                if changed := self.experiment.changed_fields(cell, run.record.config):
                    yield f"{folder}: {run.name} was made with another config: {', '.join(changed)}"

    def write(self) -> list[Path]:
        """Update the README's blocks and the figure; returns the files."""
        path = self.experiment.folder / README
        path.write_text(self.render(path.read_text(encoding="utf-8")), encoding="utf-8")
        drawn, picture = self.experiment.figure, self.experiment.folder / FIGURE
        if not drawn or not self.main_runs:
            return [path]
        figure.save(drawn, self.main_runs, picture)
        return [path, picture]


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
        ends = f"{show(found.low)} to {show(found.high)}" if found.is_known else ONE_RUN
        return f"{show(found.value)} ({ends})"

    return _PLACEHOLDER.sub(figures, text)


def records_of(runs: RunsByCell) -> list[Record]:
    """The Records of all runs."""
    return [run.record for of_cell in runs.values() for run in of_cell]


def _setup(kind: str, records: list[Record]) -> list[str]:
    environment = records[0].environment
    locks = [record.environment.get("lock") or {} for record in records]
    commits = [record.environment.get("git") or {} for record in records]
    differs = _distinct(name for lock in locks for name in lock.get("differs") or ())
    dirty = " with uncommitted changes" if any(git.get("dirty") for git in commits) else ""
    sweeps = _distinct(record.parent for record in records if record.parent)
    of_sweep = f" of sweep {sweeps}" if sweeps else ""
    threads, torch = (
        _distinct(str(record.environment.get(key)) for record in records) for key in ("threads", "torch")
    )
    lines = (
        escape(f"machine: {machine(records[0])} ({kind}); threads of torch: {threads}"),
        escape(f"software: Python {environment.get('python')}, torch {torch}, ") + _os(environment.get("os")),
        "lock: `requirements.lock` of SHA-256 "
        + _distinct(code(f"{str(lock.get('sha256'))[:16]}…") for lock in locks)
        + escape(f", but for {differs}" if differs else ", nothing differs from it"),
        "code: commit " + _distinct(code(str(git.get("commit"))[:12]) for git in commits) + dirty,
        escape(f"date: {date(records)}; {len(records)} runs{of_sweep}"),
    )
    return [f"- {line}" for line in lines]


def _os(name: object) -> str:
    """As it is where no sign in it is markup: an underscore between letters is none."""
    is_plain = re.fullmatch(r"[A-Za-z0-9.+-]+(_[A-Za-z0-9.+-]+)*", str(name))
    return str(name) if is_plain else escape(str(name))


def _distinct(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def date(records: list[Record]) -> str:
    return min(record.started for record in records)[:10]


def machine(record: Record) -> str:
    """The processor with its count, and the accelerators of a run's machine."""
    environment = record.environment
    accelerators = [str(device["name"]) for device in environment.get("accelerators") or []]
    cpu = f"{environment.get('cpu')}, {environment.get('cpu_count')} cores"
    return f"{cpu}, {units.repeated(accelerators, ', ')}" if accelerators else cpu

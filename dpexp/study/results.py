"""results.md of an experiment: its answer, figure, tables and claims, all made from its Records.

README.md, which is written by hand, links it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpexp.record.record import Record
from dpexp.report import units
from dpexp.report.intervals import ONE_RUN, interval
from dpexp.report.layout import accelerator_names
from dpexp.report.markdown import escape, table
from dpexp.report.section import Table
from dpexp.study.experiment import CONFIG, ClaimOutcome, Experiment, Verdict, judge
from dpexp.study.figure import save, shows
from dpexp.study.metrics import is_timed, metric, table_cell, value
from dpexp.study.records import RunsByCell, changed_fields

RESULTS, FIGURE = "results.md", "figure.png"
INTERVALS = (
    "A time is the geometric mean of its runs' medians, with the interquartile range of all samples in "
    "brackets and their number after it; an interval is of Student's t over the runs, paired by round. A "
    "claim about time is one about this machine."
)
_PLACEHOLDER = re.compile(r"\{(value|ratio) ([\w:]+) ([\w-]+)(?: ([\w-]+))?\}")


@dataclass
class Results:
    """The committed results of an experiment. The answer is about the first kind of machine."""

    experiment: Experiment

    @cached_property
    def runs(self) -> dict[str, RunsByCell]:
        """{kind of machine: its runs by cell}"""
        return self.experiment.committed_runs()

    @cached_property
    def verdicts(self) -> dict[str, list[Verdict]]:
        """{kind of machine: the verdicts on the claims}"""
        return {kind: judge(self.experiment, runs) for kind, runs in self.runs.items()}

    @property
    def main_runs(self) -> RunsByCell:
        """The runs on the first kind of machine."""
        return next(iter(self.runs.values()), {})

    def text(self) -> str:
        """What results.md holds."""
        name, drawn = self.experiment.name, self.experiment.figure
        parts = [
            f"# {self.experiment.question}",
            f"`python scripts/report.py experiments/{name}` made this page of the Records; "
            "[README](README.md) explains it.",
            self.answer(),
        ]
        if drawn and self.main_runs:
            parts.append(f"![{escape(drawn.title)}]({FIGURE})")
        for kind, runs in self.runs.items():
            parts += [f"## On {kind}", *self._tables(kind, runs), _setup(runs)]
        return "\n\n".join([*parts, INTERVALS]) + "\n"

    def answer(self) -> str:
        """The answer in one sentence with the claims that do not hold, or ``Not answered`` and why.

        A question is not answered if a verdict is not the stated one, or if all its claims are about time
        and none of them holds.
        """
        if not self.main_runs:
            return "**Not answered:** nothing was measured yet."
        answer = fill(self.experiment.answer, self.main_runs)
        verdicts = next(iter(self.verdicts.values()))
        weak = [verdict for verdict in verdicts if verdict.outcome != ClaimOutcome.HOLDS]
        timed = [verdict for verdict in verdicts if verdict.is_timed]
        reasons = (f"“{verdict.claim.text}” is {verdict.outcome}: {verdict.figures}" for verdict in weak)
        why = escape("; ".join(reasons))
        is_as_stated = all(verdict.is_as_stated for verdict in verdicts)
        if not is_as_stated or (timed and all(verdict in weak for verdict in timed)):
            return f"**Not answered:** {why}. Measured: {answer}"
        return f"**{answer}**" + (f" But {why}." if weak else "")

    def _tables(self, kind: str, runs: RunsByCell) -> Iterator[str]:
        columns = [metric(name) for name in self.experiment.columns]
        cells = tuple(
            (cell, str(len(runs[cell])), *(table_cell(figure, runs[cell]) for figure in columns))
            for cell in self.experiment.cells
            if runs.get(cell)
        )
        yield table(Table(("cell", "runs", *(figure.title for figure in columns)), cells))
        verdicts = tuple(
            (verdict.claim.text, verdict.outcome, verdict.figures, "time" if verdict.is_timed else "fact")
            for verdict in self.verdicts[kind]
        )
        yield table(Table(("claim", "here", "figures", "kind"), verdicts))

    def problems(self) -> list[str]:
        """Where the committed result differs from what its Records and config give."""
        experiment, folder = self.experiment, self.experiment.folder
        if not self.runs:
            return [f"{experiment.records}: no Records"]
        problems = [problem for kind in self.runs for problem in self._record_problems(kind)]
        update = f"python scripts/report.py experiments/{experiment.name}"
        path = folder / RESULTS
        if not path.is_file() or path.read_text(encoding="utf-8") != self.text():
            problems.append(f"{path} is not what the Records give: {update}")
        drawn = experiment.figure
        if drawn and not shows(folder / FIGURE, drawn, self.main_runs):
            problems.append(f"{folder / FIGURE} is not drawn from the Records: {update}")
        for kind, verdicts in self.verdicts.items():
            problems += [
                f"{folder / CONFIG}: claim “{verdict.claim.text}”: {verdict.outcome} on {kind}, "
                f"not {verdict.claim.stated}: {verdict.figures}"
                for verdict in verdicts
                if not verdict.is_as_stated
            ]
        return problems

    def _record_problems(self, kind: str) -> Iterator[str]:
        """The cells that lack a round, and the Records of another config."""
        experiment, folder = self.experiment, self.experiment.records / kind
        for cell in self.runs[kind].keys() - experiment.cells:
            yield f"{folder}: cell '{cell}' is not in {CONFIG}: remove its Records"
        for cell in experiment.cells:
            measured = self.runs[kind].get(cell, {})
            if [*measured] != [*range(1, experiment.repeats + 1)]:
                yield f"{folder}: cell '{cell}' has rounds {[*measured]}, not 1 to {experiment.repeats}"
            for number, run in measured.items() if cell in experiment.runs else ():
                if changed := changed_fields(experiment.runs[cell], run.record.config):
                    yield f"{folder}: {cell}.r{number} was made with another config: {', '.join(changed)}"

    def write(self) -> list[Path]:
        """Write results.md and the figure; returns the files."""
        path, picture = self.experiment.folder / RESULTS, self.experiment.folder / FIGURE
        path.write_text(self.text(), encoding="utf-8")
        if not self.experiment.figure or not self.main_runs:
            return [path]
        save(self.experiment.figure, self.main_runs, picture)
        return [path, picture]


def fill(text: str, runs: RunsByCell) -> str:
    """The text with figures in place of ``{value METRIC CELL}`` and ``{ratio METRIC CELL CELL}``."""

    def shown_figure(match: re.Match[str]) -> str:
        what, name, cell, against = match.groups()
        missing = [cell for cell in (cell, against) if cell and not runs.get(cell)]
        if missing:
            return f"(not measured: {', '.join(missing)})"
        figure = metric(name)
        runs_of_cell, baseline = runs[cell], runs[against] if what == "ratio" else None
        unit = "x" if what == "ratio" else figure.unit
        if not is_timed(figure):
            fact = value(figure, runs_of_cell)
            return units.text(fact / value(figure, baseline) if baseline else fact, unit)
        estimate = interval(figure, runs_of_cell, baseline)
        if estimate is None:
            return f"(not measured: {name})"
        shown, low, high = (units.text(end, unit) for end in (estimate.value, estimate.low, estimate.high))
        return f"{shown} ({f'{low} to {high}' if estimate.is_known else ONE_RUN})"

    return _PLACEHOLDER.sub(shown_figure, text)


def _setup(runs: RunsByCell) -> str:
    """Machine, versions, lock, commit and date of these runs as a list."""
    records = [run.record for rounds in runs.values() for run in rounds.values()]
    environments = [record.environment for record in records]
    locks = [each.get("lock") or {} for each in environments]
    commits = [each.get("git") or {} for each in environments]
    differs = _distinct(name for lock in locks for name in lock.get("differs") or ())
    sweeps = _distinct(record.parent for record in records if record.parent)
    lines = {
        "machine": _machine(records[0]),
        "threads of torch": _distinct(each.get("threads") for each in environments),
        "software": f"Python {_distinct(each.get('python') for each in environments)}, "
        f"torch {_distinct(each.get('torch') for each in environments)}, {environments[0].get('os')}",
        "SHA-256 of requirements.lock": _distinct(str(lock.get("sha256"))[:16] for lock in locks)
        + (f", but for {differs}" if differs else ", nothing differs from it"),
        "commit": _distinct(str(git.get("commit"))[:12] for git in commits)
        + (" with uncommitted changes" if any(git.get("dirty") for git in commits) else ""),
        "date": f"{min(record.started for record in records)[:10]}; {len(records)} runs"
        + (f" of sweep {sweeps}" if sweeps else ""),
    }
    return "\n".join(f"- {name}: {escape(text)}" for name, text in lines.items())


def _distinct(values: Iterable[object]) -> str:
    return ", ".join(sorted(set(map(str, values))))


def _machine(record: Record) -> str:
    cpu = f"{record.environment.get('cpu')}, {record.environment.get('cpu_count')} cores"
    return ", ".join(filter(None, [cpu, units.repeated(accelerator_names(record), ", ")]))

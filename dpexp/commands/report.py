"""Compare recorded runs in tables and figures; write and check the results of experiments.

Needs neither torch nor MLflow.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from dpexp.commands.app import Exit, make_app, say, show_report
from dpexp.commands.options import examples
from dpexp.config.errors import ConfigError
from dpexp.config.process import command, home, working_root
from dpexp.record.files import JournalError
from dpexp.record.fold import load_record
from dpexp.record.journal import JOURNAL, RECORD
from dpexp.record.runs import find, folders
from dpexp.report import markdown, table, terminal
from dpexp.report.compare import compare
from dpexp.study.experiment import CONFIG, load_experiment
from dpexp.study.results import Results

app = make_app("Compare recorded runs; write or check the results of experiments.")

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|experiments/NAME",
        help="Run id, unique prefix of one, run name, last, or the folder of a run; a sweep stands for its "
        "runs. Default: all runs. Or folders of experiments: results.md and the figure are written again.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write the comparison to report.md, as Markdown, in this folder.", metavar="DIR"
    ),
]
_Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Check experiments (default: all) and write nothing; exit with 1 if results, a figure, a claim "
        "or a config differs from what the committed Records give.",
    ),
]


@app.command("report", epilog=examples("report", "", "last --out compared"))
def report(runs: Runs = None, out: Out = None, check: _Check = False) -> None:
    """Compare runs: step time, speed-up with its interval, memory, and gradient error.

    Only runs of the same execution, machine and work are ranked; noise is marked.
    """
    names = runs or []
    if check or any((Path(name) / CONFIG).is_file() for name in names):
        raise typer.Exit(_check(names) if check else _write(names))
    sections = table.comparison_sections(compare(_chosen(names)))
    show_report(terminal.terminal_text(sections, piped=terminal.WIDE))
    if out is not None:
        say(f"wrote {markdown.write_report(sections, out)}", err=True)


def _chosen(names: list[str]) -> list[Path]:
    """The folders of the runs to compare: of all runs, or of those named, a sweep's runs in its place."""
    every = folders(home() / "runs")
    if not names:
        if not every:
            raise ConfigError(f"no run to compare in {home() / 'runs'}: {command('run')} hybrid makes one")
        return every
    named = list(map(_folder, names))
    chosen = dict.fromkeys(named)
    for folder in every:
        with contextlib.suppress(JournalError):  # it is no run of a named sweep
            if load_record(folder).parent in {each.name for each in named}:
                chosen[folder] = None
    return [*chosen]


def _write(names: list[str]) -> int:
    for name in names:
        for path in Results(load_experiment(Path(name))).write():
            say(f"wrote {path}", err=True)
    return Exit.DONE


def _check(names: list[str]) -> int:
    """Report where these experiments, or all, differ from their Records."""
    every = [path.parent for path in sorted(working_root().glob(f"experiments/*/{CONFIG}"))]
    problems = []
    for folder in map(Path, names) if names else every:
        found = Results(load_experiment(folder)).problems()
        say(f"{folder.name}: {f'{len(found)} problems' if found else 'agrees with its Records'}")
        problems += found
    for problem in problems:
        say(f"error: {problem}", err=True)
    return Exit.FAILED if problems else Exit.DONE


def _folder(name: str) -> Path:
    path = Path(name)
    is_folder = (path / RECORD).is_file() or (path / JOURNAL).is_file()
    return path if is_folder else find(home() / "runs", name)

"""Compare recorded runs: tables, figures, and what may not be ranked; experiments' READMEs made and checked.

Needs neither torch nor MLflow, but for ``--check``, which builds what the experiments' configs name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from dpexp import cli
from dpexp.config import ConfigError, home

if TYPE_CHECKING:
    from dpexp.study.experiment import Experiment

app = cli.app("Compare recorded runs; make or check the READMEs of experiments.")
EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[experiments/NAME... | RUN...]",
        help="Run id, unique prefix of one, run name, last, or a run's folder. Default: every run there is. "
        "Or experiments' folders, whose READMEs and figures are made anew.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Write report.md, report.html and their pictures there.", metavar="DIR"),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Experiments (default: all): write nothing, and end with 1 where a README, a figure, a claim or "
        "a config is not as the committed Records say.",
    ),
]


@app.command()
def report(runs: Runs = None, out: Out = None, check: Check = False) -> None:
    """Compare runs: step time, speed-up with its interval, memory, and gradient error.

    Runs are ranked only against runs of the same kind of execution, on the same machine, doing the same
    work; a difference within the noise is called that.
    """
    words = runs or []
    if check or any((Path(word) / "config.py").is_file() for word in words):
        raise typer.Exit(_check(words) if check else _make(words))
    from dpexp.report.compare import tables
    from dpexp.report.compare.grouping import compare
    from dpexp.report.render import terminal

    compared = compare(folders(runs or []))
    typer.echo(terminal.text(tables.sections(compared), piped=terminal.WIDE))
    if out is not None:
        from dpexp.report.compare.files import write

        for path in write(compared, out):
            typer.echo(f"wrote {path}", err=True)


def _make(words: list[str]) -> int:
    """Make README and figure of these experiments anew, and the index."""
    from dpexp.study import experiment
    from dpexp.study.readme import Page, with_index

    for folder in map(Path, words):
        for path in Page(experiment.load(folder)).write():
            typer.echo(f"wrote {path}", err=True)
        index = folder.resolve().parent / "README.md"
        if index.is_file():
            index.write_text(with_index(index.parent), encoding="utf-8")
    return cli.Exit.DONE


def _check(words: list[str]) -> int:
    """Say what of these experiments, or of all, is not as their Records say."""
    from dpexp.study import experiment
    from dpexp.study.readme import Page, with_index

    asked = [Path(word) for word in words] or [
        path.parent for path in sorted(EXPERIMENTS.glob("*/config.py"))
    ]
    problems = []
    for folder in asked:
        loaded = experiment.load(folder)
        found = [*Page(loaded).problems(), *_unbuilt(loaded)]
        typer.echo(f"{loaded.name}: {f'{len(found)} problems' if found else 'as its Records say'}")
        problems += found
    for index in sorted({folder.resolve().parent / "README.md" for folder in asked}):
        if index.is_file() and with_index(index.parent) != index.read_text(encoding="utf-8"):
            problems.append(f"{index}: its table is not what the Records give: report.py experiments/NAME")
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    return cli.Exit.FAILED if problems else cli.Exit.DONE


def _unbuilt(asked: Experiment) -> list[str]:
    """The cells whose model, data and layout can't be made any more."""
    from dpexp.config import RunConfig
    from dpexp.engine.dry_run import dry_run

    found = []
    for cell, run in asked.runs.items():
        try:
            if isinstance(run, RunConfig):
                dry_run(run)
        except ConfigError as error:
            found.append(f"{asked.folder / 'config.py'}: cell '{cell}' no longer builds: {error}")
    return found


def folders(words: list[str]) -> list[Path]:
    """The folders that the words name; without words those of every run. Raises ConfigError for none."""
    from dpexp import record

    runs = home() / "runs"
    there = {folder.name: folder for folder in record.folders(runs)}
    if not words and not there:
        raise ConfigError(f"no run yet in {runs}: python scripts/run.py hybrid makes one")
    if not words:
        return list(there.values())
    return list(dict.fromkeys(there[word] if word in there else _folder(runs, word) for word in words))


def _folder(runs: Path, word: str) -> Path:
    from dpexp import record

    path = Path(word)
    if (path / record.RECORD).is_file() or (path / record.JOURNAL).is_file():
        return path
    try:
        return record.find(runs, word)
    except record.UnknownRunError as error:
        raise ConfigError(str(error)) from None


if __name__ == "__main__":
    cli.main(app)

"""Compare recorded runs: tables, figures, and what may not be ranked. Needs neither torch nor MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from dpexp import cli
from dpexp.config import ConfigError, home

app = cli.app("Compare recorded runs.")

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN...]",
        help="Run id, unique prefix of one, run name, last, or a run's folder. Default: every run there is.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Write report.md, report.html and their pictures there.", metavar="DIR"),
]


@app.command()
def report(runs: Runs = None, out: Out = None) -> None:
    """Compare runs: step time, speed-up with its interval, memory, and gradient error.

    Runs are ranked only against runs of the same kind of execution, on the same machine, doing the same
    work; a difference within the noise is called that.
    """
    from dpexp.report import comparison, terminal
    from dpexp.report.ranking import compare

    compared = compare(folders(runs or []))
    typer.echo(terminal.text(comparison.tell(compared)))
    if out is not None:
        from dpexp.report.comparison_files import write

        for path in write(compared, out):
            typer.echo(f"wrote {path}", err=True)


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

"""The runs on this disk: list and show them, deliver them to MLflow, close those that died."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from dpexp import cli
from dpexp.config import ConfigError, home

app = cli.app("List and show recorded runs, deliver them to MLflow, and close those that died.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Run id, unique prefix of one, run name, or last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("list")
def list_(
    as_json: Json = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many of the newest.")] = sys.maxsize,
) -> None:
    """Every run, the newest first."""
    from dpexp.record import summaries
    from dpexp.report.render.run_list import table
    from dpexp.tracking.ledger import delivered

    runs = _runs()
    known = summaries(runs)[:limit]
    there = delivered(home(), [head.run_id for head in known])
    if as_json:
        typer.echo(json.dumps([{**head.to_dict(), "delivered": there[head.run_id]} for head in known]))
    elif known:
        typer.echo(table(known, there))
    else:
        typer.echo(f"no run yet in {runs}: python scripts/run.py hybrid makes one", err=True)


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """One run's summary, or with --json its Record."""
    from dpexp.record import load
    from dpexp.tracking.ledger import delivered

    folder = _find(run)
    record = load(folder)
    if as_json:
        typer.echo(record.to_json(), nl=False)
        return
    from dpexp import report

    typer.echo(report.summary(record))
    typer.echo(f"delivered to MLflow: {delivered(home(), [folder.name])[folder.name]}")


@app.command()
def sync(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|PATH]...", help="Runs, or paths of journals from other machines."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what the store is known to have.")] = False,
) -> None:
    """Deliver to MLflow what is missing there, once; without RUN every run that is not delivered."""
    from dpexp.tracking import sync

    _runs()
    folders = [folder for word in runs for folder in _named(word)] if runs else sync.undelivered(home())
    kept = 0 if folders else len(sync.untracked(home()))
    stay = f"; {kept} with --no-track stay here, unless they are named" if kept else ""
    _deliver(folders, again, f"everything is delivered{stay}")


@app.command()
def reap() -> None:
    """Close the runs whose process died: their Record is written, and MLflow no longer shows them running."""
    from dpexp.tracking import sync

    _runs()
    dead = sync.dead(home())
    for folder in dead:
        typer.echo(_line(sync.close(folder)))
    _deliver(dead, False, "no dead run")


@app.command()
def reproduce(
    run: Annotated[str, typer.Argument(metavar="RUN|record.json", help="A run here, or a Record's file.")],
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the recorded commit, checked out into a worktree.")
    ] = False,
) -> None:
    """Run a recorded run again and compare: ends with 0 only when what must be equal is."""
    from dpexp.record import load
    from dpexp.report.render import terminal
    from dpexp.study import reproduce as again
    from dpexp.study.experiment import read

    path = Path(run).expanduser()
    result = again.reproduce(read(path) if path.is_file() else load(_find(run)), exact=exact)
    typer.echo(terminal.text(again.tell(result)))
    raise typer.Exit(cli.Exit.DONE if result.is_reproduced else cli.Exit.FAILED)


def _runs() -> Path:
    """Where the runs lie; ConfigError where DPEXP_HOME is mistyped."""
    if not home().is_dir():
        raise ConfigError(f"DPEXP_HOME {home()} is no directory: make it, or correct DPEXP_HOME")
    return home() / "runs"


def _deliver(folders: list[Path], again: bool, nothing: str) -> None:
    from dpexp.tracking import sync
    from dpexp.tracking.errors import StoreError

    if not folders:
        typer.echo(nothing)
        return
    well = True
    try:
        for result in sync.deliver(home(), folders, again=again):
            well &= result.is_well
            typer.echo(_line(result), err=not result.is_well)
    except StoreError as error:
        typer.echo(f"error: {error}; the journals stay, and can be delivered later", err=True)
        well = False
    raise typer.Exit(cli.Exit.DONE if well else cli.Exit.NOT_DELIVERED)


def _named(word: str) -> list[Path]:
    """The folders of a run's word, or of a path: something with a separator, or that is a file."""
    from dpexp.record import import_journal, journals

    path = Path(word).expanduser()
    if "/" not in word and not path.is_file():
        return [_find(word)]
    found = journals(path)
    if not found:
        raise ConfigError(f"no journal.jsonl in {path}, nor in a folder of it")
    return [import_journal(journal, _runs()) for journal in found]


def _find(word: str) -> Path:
    from dpexp.record import UnknownRunError, find

    try:
        return find(_runs(), word)
    except UnknownRunError as error:
        raise ConfigError(str(error)) from None


def _line(result: object) -> str:
    from dpexp.tracking.sync import Result

    assert isinstance(result, Result)
    return f"{result.run_id}  {result.state}" + (f": {result.message}" if result.message else "")


if __name__ == "__main__":
    cli.main(app)

"""The installed command ``dpexp``: the apps of scripts/ as its subcommands."""

from typing import Annotated

import typer

from dpexp import __version__
from dpexp.commands import plan, report, run, runs, sweep, ui
from dpexp.commands.app import make_app, run_app

app = make_app("How should this model be laid out across these devices?", completion=True)
app.add_typer(run.app, name="run")
app.add_typer(runs.app, name="runs")
for each in (plan, sweep, report, ui):
    app.add_typer(each.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpexp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """The options of ``dpexp`` itself."""
    del version  # its callback shows it


def main() -> None:
    """Run the command line of this process."""
    run_app(app)

"""Run one strategy once: verify it, measure it, and record it in MLflow."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from dpexp import report
from dpexp.commands.app import DEBUG, Exit, exit_on_error, make_app, print_error, say, show_report
from dpexp.commands.options import OUTPUT, check_environment, examples, load_config, with_options
from dpexp.config.errors import Terminated, as_config_error, describe, text_of
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.distributed.world import World
from dpexp.engine.progress import importing_torch
from dpexp.models.registry import registry
from dpexp.record.record import Record
from dpexp.report import listing, terminal
from dpexp.run import execute

app = make_app("Run a model under a data-parallel strategy, verify it, measure it, and record it in MLflow.")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Read options from a TOML or JSON file.",
        metavar="FILE",
        is_eager=True,
        callback=load_config,
        rich_help_panel=OUTPUT,
    ),
]


def _output(name: str, help: str) -> Any:
    return typer.Option(name, help=help, metavar="", rich_help_panel=OUTPUT)


PrintConfig = Annotated[bool, _output("--print-config", "Print the complete config as JSON and stop.")]
_DryRun = Annotated[bool, _output("--dry-run", "Show devices, device map and batch split without a run.")]
_Json = Annotated[bool, _output("--json", "Print one JSON document, the Record of a run, and nothing else.")]
Full = Annotated[bool, _output("--full", "Print the complete summary, with every row.")]
Quiet = Annotated[bool, _output("--quiet", "No progress bar and no summary.")]
Debug = Annotated[bool, _output(DEBUG, "Show the traceback of an error.")]


def _command(strategy: str) -> None:
    def command(
        config_file: Config = None,
        print_config: PrintConfig = False,
        dry_run: _DryRun = False,
        as_json: _Json = False,
        full: Full = False,
        quiet: Quiet = False,
        debug: Debug = False,
        **values: Any,
    ) -> None:
        del config_file, debug  # load_config and print_error use them
        check_environment()
        config = RunConfig.from_dict({"strategy": strategy, **values}, where="")
        if print_config:
            say(json.dumps(config.to_dict(), indent=2))
            return
        with exit_on_error():
            if dry_run:
                _preview(config, as_json, full)
            else:
                raise typer.Exit(_run(config, as_json, full, quiet))

    options = STRATEGY_OPTIONS[strategy]
    command.__doc__ = options.__doc__
    epilog = examples("run", *(f"{strategy} {line}" for line in options.examples))
    app.command(strategy, epilog=epilog)(with_options(command, strategy))


def _preview(config: RunConfig, as_json: bool, full: bool) -> None:
    with as_config_error("the start of the run"), redirect_stdout(sys.stderr), importing_torch():
        from dpexp.engine.prediction import dry_run  # imports torch

        record = dry_run(config)
    _show(record, as_json, full, sys.stdout)


def _show(record: Record, as_json: bool, full: bool, stdout: TextIO) -> None:
    if as_json:
        say(record.to_json(), file=stdout)
    else:
        show_report(report.summary(record, full=full, stream=stdout), file=stdout)


def _run(config: RunConfig, as_json: bool, full: bool, quiet: bool) -> int:
    stdout = sys.stdout

    def show(record: Record, error: BaseException | None) -> None:
        if as_json or not quiet:
            _show(record, as_json, full, stdout)

    with redirect_stdout(sys.stderr):
        outcome = execute(config, quiet=quiet, is_last=True, on_record=show)
    if outcome.record is None:
        return _ended_without_record(outcome.error)
    delivery = outcome.delivery
    if delivery is not None and delivery.message and not (quiet and delivery.complete):
        say(delivery.message, err=as_json or not delivery.complete)
    if outcome.error is not None:
        return _failed(outcome.error)
    is_delivered = delivery is None or delivery.complete
    return Exit.DONE if is_delivered else Exit.NOT_DELIVERED


def _ended_without_record(error: BaseException | None) -> int:
    """A rank that does not record prints nothing; without ranks, print why there is no Record."""
    if error is None:
        return Exit.DONE
    if World.of() is None:
        print_error(error, "interrupted" if isinstance(error, KeyboardInterrupt) else str(error))
    return _code(error)


def _failed(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        message = "interrupted; what was measured is recorded"
    else:
        is_ours = type(error).__module__.startswith("dpexp.")
        message = text_of(error) if is_ours else describe(error)
    print_error(error, message)
    return _code(error)


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return Exit.TERMINATED if isinstance(error, Terminated) else Exit.FAILED


@app.command("models", epilog=examples("run", "models", "models --json"))
def models(
    as_json: _Json = False,
    debug: Debug = False,
) -> None:
    """List the models with their options."""
    del debug  # print_error uses it
    with exit_on_error(), as_config_error("the start of the run"), redirect_stdout(sys.stderr):
        found = registry()
    if as_json:
        say(json.dumps(found, indent=1))
    else:
        show_report(terminal.terminal_text(listing.models_sections(found)))


for name in STRATEGY_OPTIONS:
    _command(name)

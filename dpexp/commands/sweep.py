"""Run an experiment, or a grid of options, each run in a new process, and report what the runs show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from dpexp.commands.app import Exit, exit_on_error, make_app, say, show_report
from dpexp.commands.grid import plan_of
from dpexp.commands.options import check_environment, examples
from dpexp.config.errors import ConfigError
from dpexp.config.printable import printable, printable_line
from dpexp.config.process import command, home
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.config.words import be, plural
from dpexp.distributed.signals import SignalHandler
from dpexp.record.files import private_files
from dpexp.record.journal import COMPARISON
from dpexp.record.record import Record
from dpexp.report import markdown, table, terminal
from dpexp.report.commands import command_of
from dpexp.report.compare import compare
from dpexp.study.experiment import CONFIG, Experiment, claim_sections, load_experiment
from dpexp.study.records import Plan, PlannedRun, finished_runs
from dpexp.tracking.store import StoreError
from dpexp.tracking.sync import sync as deliver

if TYPE_CHECKING:
    from dpexp.study.sweep import CompletedRun, Sweep

app = make_app("Run every config of an experiment or of a grid, interleaved and repeated.")
_REPEATS = 5

_Words = Annotated[
    list[str],
    typer.Argument(
        metavar="experiments/NAME | STRATEGY... [--OPTION VALUE,VALUE...]",
        help="An experiment's folder; or strategies and options of run, each with one or more values: every "
        "combination is a cell. A value with : or = is not split at commas: repeat the option.",
        show_default=False,
    ),
]
_Repeat = Annotated[
    int | None,
    typer.Option("--repeat", help="Runs of each cell of a grid. Default: 5.", metavar="INTEGER", min=1),
]
_Resume = Annotated[bool, typer.Option("--resume", help="Resume the newest sweep: run only what is missing.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs in their order without running them.")
]
_Publish = Annotated[
    bool, typer.Option("--publish", help="Replace the committed Records of the experiment by the new ones.")
]
_Track = Annotated[
    bool,
    typer.Option("--track/--no-track", help="Deliver the runs to MLflow at the end.", envvar="DPEXP_TRACK"),
]


@app.command(
    "sweep",
    epilog=examples("sweep", "experiments/why_slower --resume", "whole --virtual 1,2,4 --dry-run"),
    # the options of run, which `grid` reads
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
def sweep(
    words: _Words,
    repeat: _Repeat = None,
    resume: _Resume = False,
    dry_run: _DryRun = False,
    publish: _Publish = False,
    track: _Track = True,
) -> None:
    """Run each cell once in each round, each run in a new process.

    An experiment ends with the verdicts on its claims, a grid with the comparison of its runs.

    The exit code is 1 if a run failed: its Record stays, and --resume runs it again.
    """
    check_environment()
    folder = Path(words[0])
    is_folder = words[0] not in STRATEGY_OPTIONS and (folder.is_dir() or len(folder.parts) > 1)
    experiment = _experiment(folder, [*words[1:], *(["--repeat"] if repeat else [])]) if is_folder else None
    if experiment is not None:
        plan = experiment.plan
    elif publish:
        raise ConfigError("--publish is for an experiment, which has a folder")
    else:
        plan, left_out = plan_of(words, repeat or _REPEATS)
        for reason in left_out:
            say(f"left out: {reason}", err=True)
    current = _sweep(plan, resume)
    missing = current.missing()
    if dry_run:
        _show(plan, missing)
        return
    failed = _run(current, missing, track)
    shown = _comparison(current)
    if track:
        _deliver(current)
    if experiment is not None:
        shown = terminal.terminal_text(claim_sections(experiment, finished_runs(current.records)))
    show_report(shown)
    if experiment is not None and publish:
        say(f"the committed result is now {current.publish(experiment.records)}", err=True)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)


def _experiment(folder: Path, options: list[str]) -> Experiment:
    """The experiment of a folder, which takes no options of a grid. Raises ConfigError."""
    path = folder / CONFIG
    if options:
        raise ConfigError(f"{options[0]}: {path} has the options of an experiment, as REPEATS")
    experiment = load_experiment(folder)
    if not experiment.runs:
        raise ConfigError(f"{path}: no cell is a run of dpexp; README says what measures them")
    return experiment


def _sweep(plan: Plan, resume: bool) -> Sweep:
    from dpexp.study.sweep import Sweep  # imports torch

    found = Sweep.latest(plan) if resume else Sweep.new(plan)
    if found is None:
        raise ConfigError(f"--resume: there is no sweep of {plan.title} in {home() / 'runs'} yet")
    return found


def _show(plan: Plan, missing: list[PlannedRun]) -> None:
    say(f"{plan.title}: {len(missing)} of {plural(len(plan.order), 'run')}, in this order:")
    for planned in missing:
        line = command_of(Record(config=plan.runs[planned.cell].to_dict()))
        say(f"  {planned.name:24} {line}")


def _run(current: Sweep, missing: list[PlannedRun], track: bool) -> int:
    """Run the missing runs, with a progress bar on stderr; return the number of failed runs."""
    name = printable_line(current.plan.name)
    with tqdm(total=len(missing), desc=name, file=sys.stderr, unit="run") as bar:

        def report(done: CompletedRun) -> None:
            bar.write(printable(_line(done)), file=sys.stderr)
            bar.update()

        with exit_on_error(), SignalHandler().installed():
            completed = current.run(missing, report, track=track)
    return sum(not done.finished for done in completed)


def _line(done: CompletedRun) -> str:
    if done.record is None or not done.finished:
        status = done.record.status if done.record else "no record"
        return f"{done.planned.name}: {status}: {done.error or 'see its record'}"
    step = done.record.summary.get("step_ms")
    step_time = f"{step['median']:.3g} ms per step (IQR {step['iqr']:.2g}), " if step else ""
    return f"{done.planned.name}: {step_time}{done.wall_s:.1f} s in total"


def _deliver(current: Sweep) -> None:
    try:
        folders = current.run_folders()
        failed = [result for result in deliver(home(), folders) if not result.is_well]
    except StoreError as error:
        say(f"not in MLflow: {error}; the journals stay: {command('runs')} sync", err=True)
        return
    every = len(folders)
    say(f"{every - len(failed)} of {plural(every, 'run')} {be(every)} in MLflow", err=True)
    for result in failed:
        say(f"{result.run_id}: {result.message}", err=True)


def _comparison(current: Sweep) -> str:
    """The comparison of the runs, which is also written to the sweep's folder."""
    _, *runs = current.run_folders()
    sections = table.comparison_sections(compare(runs))
    text = terminal.terminal_text(sections, piped=terminal.WIDE)
    with private_files():
        path = markdown.write_report(sections, current.folder / COMPARISON)
    return f"{text}\n{printable(f'this comparison as Markdown: {path}')}"

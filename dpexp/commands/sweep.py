"""Run an experiment, or a grid of options, each run in a new process, and report what the runs show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpexp.commands.app import Exit, exit_on_error, make_app, say, show_report
from dpexp.commands.options import check_environment, epilog
from dpexp.config.errors import ConfigError, be, plural
from dpexp.config.printable import printable, printable_line
from dpexp.config.process import command, home
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.distributed.signals import SignalHandler

if TYPE_CHECKING:
    from dpexp.study.experiment import Experiment
    from dpexp.study.records import PlannedRun
    from dpexp.study.sweep import CompletedRun, Sweep

if TYPE_CHECKING:
    from dpexp.study.sweep import Sweep


app = make_app("Run every config of an experiment or of a grid, interleaved and repeated.")
SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"], "max_content_width": 100}
"""The options of ``run`` are unknown to this command: ``grid`` reads them."""

_REPEATS = 5

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="experiments/NAME | STRATEGY... [--OPTION VALUE,VALUE...]",
        help="An experiment's folder; or strategies and options of run, each with one or more values: every "
        "combination is a cell. A value with : or = is not split at commas: repeat the option.",
        show_default=False,
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        "--repeat",
        help="Runs of each cell of a grid. Default: 5.",
        metavar="INTEGER",
        min=1,
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the newest sweep: run only what is missing.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs in their order without running them.")
]
Publish = Annotated[
    bool, typer.Option("--publish", help="Replace the committed Records of the experiment by the new ones.")
]
Track = Annotated[
    bool,
    typer.Option("--track/--no-track", help="Deliver the runs to MLflow at the end.", envvar="DPEXP_TRACK"),
]


@app.command(epilog=epilog("sweep"), context_settings=SETTINGS)
def sweep(
    ctx: typer.Context,
    words: Words,
    repeat: Repeat = None,
    resume: Resume = False,
    dry_run: _DryRun = False,
    publish: Publish = False,
    track: Track = True,
) -> None:
    """Run each cell once in each round, each run in a new process.

    An experiment ends with the verdicts on its claims, a grid with the comparison of its runs.

    The exit code is 1 if a run failed: its Record stays, and --resume runs it again.
    """
    from dpexp.study import sweep as sweeps
    from dpexp.study.grid import Grid

    check_environment()
    own = [flag for one in ctx.command.params for flag in one.opts if flag[0] == "-"]
    experiment = _experiment(words, repeat, own)
    if isinstance(experiment, Grid) and publish:
        raise ConfigError("--publish is for an experiment, which has a folder")
    planned = sweeps.plan_runs(experiment)
    current = _sweep(experiment, resume)
    missing = current.missing(planned)
    if dry_run:
        _show(experiment, missing, len(planned))
        return
    is_complete = not missing and resume and current.has_ended(track=track)
    failed = 0 if is_complete else _run(current, missing, track)
    show_results(current, track=track)
    if publish:
        say(f"the committed result is now {current.publish()}", err=True)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)


def _is_folder(word: str) -> bool:
    folder = Path(word)
    return word not in STRATEGY_OPTIONS and (folder.is_dir() or len(folder.parts) > 1)


def _experiment(words: list[str], repeat: int | None, own: list[str]) -> Experiment:
    """The experiment of a folder, or the grid of a command line; names what a grid leaves out."""
    from dpexp.commands import grid
    from dpexp.study import experiment as experiments

    folder = Path(words[0])
    if _is_folder(words[0]):
        if repeat or words[1:]:
            found = words[1] if words[1:] else "--repeat"
            raise ConfigError(f"{found}: {folder / 'config.py'} has the options of an experiment, as REPEATS")
        experiment = experiments.load_experiment(folder)
        if not experiment.runs:
            raise ConfigError(
                f"{folder / 'config.py'}: no cell is a run of dpexp; README says what measures them"
            )
        return experiment
    parsed = grid.parse(words, own, repeat or _REPEATS)
    for reason in parsed.left_out:
        say(f"left out: {reason}", err=True)
    return parsed


def _sweep(experiment: Experiment, resume: bool) -> Sweep:
    """A new sweep, or the newest one."""
    from dpexp.study.sweep import Sweep

    if not resume:
        return Sweep.new(experiment)
    newest = Sweep.latest(experiment)
    if newest is None:
        raise ConfigError(f"--resume: there is no sweep of {experiment.title} in {home() / 'runs'} yet")
    return newest


def _show(experiment: Experiment, missing: list[PlannedRun], total: int) -> None:
    from dpexp.study.sweep import command_line

    say(f"{experiment.question}\n{len(missing)} of {plural(total, 'run')}, in this order:")
    for planned in missing:
        say(f"  {planned.name:24} {command_line(experiment, planned.cell)}")


def _run(current: Sweep, missing: list[PlannedRun], track: bool) -> int:
    """Run the missing runs, with a progress bar on stderr; return the number of failed runs."""
    from tqdm import tqdm

    failed = 0
    with tqdm(
        total=len(missing), desc=printable_line(current.experiment.name), file=sys.stderr, unit="run"
    ) as bar:

        def report(done: CompletedRun) -> None:
            nonlocal failed
            failed += not done.finished
            bar.write(printable(_line(done)), file=sys.stderr)
            bar.update()

        with exit_on_error(), SignalHandler().installed():
            current.run(missing, report, track=track)
    return failed


def _line(done: CompletedRun) -> str:
    if done.record is None or not done.finished:
        status = done.record.status if done.record else "no record"
        return f"{done.planned.name}: {status}: {done.error or 'see its record'}"
    step = done.record.summary.get("step_ms")
    step_time = f"{step['median']:.3g} ms per step (IQR {step['iqr']:.2g}), " if step else ""
    return f"{done.planned.name}: {step_time}{done.wall_s:.1f} s in total"


def show_results(current: Sweep, *, track: bool) -> None:
    """Write the comparison, deliver the runs with it, and print what the sweep shows."""
    from dpexp.study.grid import Grid

    comparison = _comparison(current)
    if track:
        _deliver(current)
    show_report(comparison if isinstance(current.experiment, Grid) else _verdicts(current))


def _deliver(current: Sweep) -> None:
    from dpexp.tracking.store import StoreError
    from dpexp.tracking.sync import sync

    try:
        folders = list(current.run_folders())
        failed = [result for result in sync(home(), folders) if not result.is_well]
    except StoreError as error:
        say(f"not in MLflow: {error}; the journals stay: {command('runs')} sync", err=True)
        return
    every, well = len(folders), len(folders) - len(failed)
    say(f"{well} of {plural(every, 'run')} {be(every)} in MLflow", err=True)
    for result in failed:
        say(f"{result.run_id}: {result.message}", err=True)


def _verdicts(current: Sweep) -> str:
    from dpexp.report import terminal
    from dpexp.study import claims
    from dpexp.study.records import measured_runs

    runs = measured_runs(current.records)
    return terminal.terminal_text(claims.claim_sections(current.experiment, runs))


def _comparison(current: Sweep) -> str:
    """The comparison of the runs, which is also written to the sweep's folder."""
    from dpexp.record.files import private_files
    from dpexp.record.journal import COMPARISON
    from dpexp.report import markdown, table, terminal
    from dpexp.report.compare import compare

    _, *runs = current.run_folders()
    sections = table.comparison_sections(compare(runs))
    text = terminal.terminal_text(sections, piped=terminal.WIDE)
    with private_files():
        path = markdown.write_report(sections, current.folder / COMPARISON)
    return f"{text}\n{printable(f'this comparison as Markdown: {path}')}"

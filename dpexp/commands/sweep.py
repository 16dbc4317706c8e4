"""Run an experiment, or a grid of options, each run in a new process, and report what the runs show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpexp.commands.command_line.app import Exit, exit_on_error, make_app
from dpexp.commands.command_line.config_options import check_environment
from dpexp.commands.command_line.help_panels import epilog
from dpexp.commands.command_line.output import say
from dpexp.commands.sweep_results import show_results
from dpexp.config.errors import ConfigError, did_you_mean
from dpexp.config.printable import printable, printable_line
from dpexp.config.process import home
from dpexp.config.ranges import plural
from dpexp.config.strategy_registry import STRATEGY_OPTIONS
from dpexp.distributed.signals import SignalHandler
from dpexp.study import MOST_REPEATS

if TYPE_CHECKING:
    from dpexp.study.experiment.experiment import Experiment
    from dpexp.study.experiment.records import PlannedRun
    from dpexp.study.sweep.cell_run import CompletedRun
    from dpexp.study.sweep.sweep import Sweep, Way

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
        max=MOST_REPEATS,
    ),
]
Only = Annotated[
    str, typer.Option("--only", help="Only cells of this name or pattern, and single.", metavar="PATTERN")
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
Order = Annotated[
    int, typer.Option("--order-seed", help="Seed of the order of the runs.", metavar="INTEGER", min=0)
]

UntilDecided = Annotated[
    bool,
    typer.Option(
        "--until-decided",
        help="Run further rounds until every claim about time is decided, or up to --limit. Those of a grid "
        "are that a cell is faster than single, or the first cell. The intervals are wider, because each "
        "round looks at them.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        help="slurm: each round is a job of Slurm, through submitit; DPEXP_HOME must lie on a disk that the "
        "nodes share. Default: the runs are made here.",
        metavar="slurm",
    ),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        help="A parameter of submitit's jobs, as partition=gpu, time=120 (minutes) or gpus_per_node=2; "
        "repeat the option for several.",
        metavar="NAME=VALUE",
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", help="Most rounds with --until-decided.", metavar="INTEGER", min=2, max=MOST_REPEATS
    ),
]


@app.command(epilog=epilog("sweep"), context_settings=SETTINGS)
def sweep(
    ctx: typer.Context,
    words: Words,
    repeat: Repeat = None,
    only: Only = "",
    resume: Resume = False,
    dry_run: _DryRun = False,
    publish: Publish = False,
    track: Track = True,
    order_seed: Order = 0,
    until_decided: UntilDecided = False,
    limit: Limit = 15,
    on: On = None,
    slurm: Slurm = None,
) -> None:
    """Run each cell once in each round, in a balanced order, each run in a new process.

    An experiment ends with the verdicts on its claims, a grid with the comparison of its runs.

    The exit code is 1 if a run failed: its Record stays, and --resume runs it again.
    """
    from dpexp.study.sweep import sweep as sweeps
    from dpexp.study.sweep.grid import Grid
    from dpexp.study.sweep.order import unbalanced

    check_environment()
    own = [flag for one in ctx.command.params for flag in one.opts if flag[0] == "-"]
    if dry_run and (large := _preview(words, repeat, own)):
        say(large)
        return
    experiment = _experiment(words, repeat, own, elsewhere=on is not None)
    _refuse(experiment, publish, until_decided, on)
    experiment = experiment.to_decide() if isinstance(experiment, Grid) and until_decided else experiment
    current = _sweep(experiment, resume, limit if until_decided else None)
    planned = sweeps.plan_runs(experiment, only, order_seed, current.limit)
    missing = current.missing(planned)
    if dry_run:
        _show(experiment, missing, len(planned))
        return
    way = _way(current, on, slurm or [])
    for remark in unbalanced(planned, missing):
        say(remark, err=True)
    is_cut_short = resume and not only and not current.has_finished
    failed = _run(current, missing, way, track) if missing or is_cut_short else 0
    show_results(current, track=track)
    if publish:
        say(f"the committed result is now {current.publish()}", err=True)
    raise typer.Exit(Exit.FAILED if failed else Exit.DONE)


def _refuse(experiment: Experiment, publish: bool, until_decided: bool, on: str | None) -> None:
    """Raises ConfigError for options that this kind of sweep does not have."""
    from dpexp.study.sweep.grid import Grid

    if isinstance(experiment, Grid) and publish:
        raise ConfigError("--publish is for an experiment, which has a folder")
    if until_decided and on:
        raise ConfigError(
            "--on: the rounds of --until-decided follow one another: give a number with --repeat"
        )


def _preview(words: list[str], repeat: int | None, own: list[str]) -> str:
    """What a dry run shows of a grid that is too large to run; empty for any other, and for an experiment."""
    from dpexp.commands import grid

    return "" if _is_folder(words[0]) else grid.preview(words, own, repeat or _REPEATS)


def _is_folder(word: str) -> bool:
    folder = Path(word)
    return word not in STRATEGY_OPTIONS and (folder.is_dir() or len(folder.parts) > 1)


def _experiment(words: list[str], repeat: int | None, own: list[str], *, elsewhere: bool) -> Experiment:
    """The experiment of a folder, or the grid of a command line; names what a grid leaves out."""
    from dpexp.commands import grid
    from dpexp.study.experiment import experiment as experiments

    folder = Path(words[0])
    if _is_folder(words[0]):
        if repeat:
            raise ConfigError(
                f"--repeat {repeat}: REPEATS in {folder / 'config.py'} says how often an experiment runs its "
                "cells; --until-decided runs further rounds"
            )
        if extra := words[1:]:
            hint = f"{folder / 'config.py'} has the options of an experiment"
            others = [flag for flag in own if flag != "--repeat"]
            raise ConfigError(f"{extra[0]}: {hint}{did_you_mean(extra[0], others)}")
        return experiments.load_experiment(folder)
    parsed = grid.parse(words, own, repeat or _REPEATS, planned=elsewhere)
    for reason in parsed.left_out:
        say(f"left out: {reason}", err=True)
    return parsed


def _sweep(experiment: Experiment, resume: bool, limit: int | None) -> Sweep:
    """A new sweep, or the newest one, which keeps its own limit."""
    from dpexp.study.sweep.sweep import Sweep

    if not resume:
        return Sweep.new(experiment, limit)
    newest = Sweep.latest(experiment)
    if newest is None:
        raise ConfigError(f"--resume: there is no sweep of {experiment.title} in {home() / 'runs'} yet")
    if limit is not None and newest.limit is None:
        raise ConfigError(
            "--resume --until-decided: the number of rounds of that sweep was fixed: start a new one"
        )
    return newest


def _show(experiment: Experiment, missing: list[PlannedRun], total: int) -> None:
    from dpexp.study.sweep.cell_run import command_line

    say(f"{experiment.question}\n{len(missing)} of {plural(total, 'run')}, in this order:")
    for planned in missing:
        say(f"  {planned.title:24} {command_line(experiment, planned.cell)}")


def _way(current: Sweep, on: str | None, options: list[str]) -> Way | None:
    """How the runs are made; nothing is submitted yet."""
    if on is None:
        if options:
            raise ConfigError("--slurm: give --on slurm as well")
        return None
    if on != "slurm":
        raise ConfigError(f"--on {on}: only slurm is known; without --on the runs are made here")
    from tqdm import tqdm

    from dpexp.study.sweep.jobs import in_jobs
    from dpexp.study.sweep.slurm_executor import slurm

    executor = slurm(current.folder, options)
    return lambda sweep, planned: in_jobs(
        sweep, planned, executor, lambda line: tqdm.write(printable(line), file=sys.stderr)
    )


def _run(current: Sweep, missing: list[PlannedRun], way: Way | None, track: bool) -> int:
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
            current.run(missing, report, way if missing else None, track=track)
    return failed


def _line(done: CompletedRun) -> str:
    if done.record is None or not done.finished:
        status = done.record.status if done.record else "no record"
        return f"{done.planned.title}: {status}: {done.error or 'see its record'}"
    step = done.record.summary.get("step_ms")
    step_time = f"{step['median']:.3g} ms a step (IQR {step['iqr']:.2g}), " if step else ""
    return f"{done.planned.title}: {step_time}{done.wall_s:.1f} s in total"

"""Run an experiment, each run in a new process, and report whether its claims hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpexp import cli
from dpexp.config import ConfigError, home
from dpexp.config.process import command

if TYPE_CHECKING:
    from dpexp.study.experiment import Experiment, PlannedRun
    from dpexp.study.sweep import CompletedRun, Sweep

app = cli.app("Run every config of an experiment, interleaved and repeated, and evaluate its claims.")

Folder = Annotated[Path, typer.Argument(metavar="experiments/NAME", help="The experiment's folder.")]
Only = Annotated[
    str, typer.Option("--only", help="Only cells of this name or pattern, and single.", metavar="PATTERN")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the newest sweep: run only what is missing.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the runs in their order without running them.")]
Publish = Annotated[
    bool, typer.Option("--publish", help="Replace the committed Records of the experiment by the new ones.")
]
Track = Annotated[bool, typer.Option("--track/--no-track", help="Deliver the runs to MLflow at the end.")]
Order = Annotated[
    int, typer.Option("--order-seed", help="Seed of the order of the runs.", metavar="INTEGER", min=0)
]

UntilDecided = Annotated[
    bool,
    typer.Option(
        "--until-decided",
        help="Run further rounds until every claim about time is decided, or up to --limit. The intervals "
        "are wider, because each round looks at them.",
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", help="Most rounds with --until-decided.", metavar="INTEGER", min=2)
]


@app.command()
def sweep(
    folder: Folder,
    only: Only = "",
    resume: Resume = False,
    dry_run: DryRun = False,
    publish: Publish = False,
    track: Track = True,
    order_seed: Order = 0,
    until_decided: UntilDecided = False,
    limit: Limit = 15,
) -> None:
    """Run each cell once in each round, in random order, each run in a new process.

    The exit code is 1 if a run failed: its Record stays, and --resume runs it again.
    """
    from dpexp.study import experiment as experiments
    from dpexp.study import sweep as sweeps

    cli.check_environment()
    experiment = experiments.load(folder)
    current = _sweep(experiment, resume, limit if until_decided else None)
    planned = sweeps.plan_runs(experiment, only, order_seed, current.limit)
    missing = current.missing(planned)
    if dry_run:
        _show(experiment, missing, len(planned))
        return
    failed = _run(current, missing)
    if track and missing:
        _deliver(current)
    typer.echo(_verdicts(experiment, current))
    if current.limit is not None:
        open_claims = len(current.undecided())
        result = (
            f"{open_claims} claims about time stay undecided"
            if open_claims
            else "all claims about time are decided"
        )
        typer.echo(f"after {current.rounds} of at most {current.limit} rounds {result}", err=True)
    if publish:
        typer.echo(f"the committed result is now {current.publish()}", err=True)
    raise typer.Exit(cli.Exit.FAILED if failed else cli.Exit.DONE)


def _sweep(experiment: Experiment, resume: bool, limit: int | None) -> Sweep:
    """A new sweep, or the newest one, which keeps its own limit."""
    from dpexp.study.sweep import Sweep

    if not resume:
        return Sweep.new(experiment, limit)
    newest = Sweep.latest(experiment)
    if newest is None:
        raise ConfigError(f"--resume: there is no sweep of {experiment.name} in {home() / 'runs'} yet")
    if limit is not None and newest.limit is None:
        raise ConfigError(
            "--resume --until-decided: the number of rounds of that sweep was fixed: start a new one"
        )
    return newest


def _show(experiment: Experiment, missing: list[PlannedRun], total: int) -> None:
    from dpexp.study.sweep import command_line

    typer.echo(f"{experiment.question}\n{len(missing)} of {total} runs, in this order:")
    for planned in missing:
        typer.echo(f"  {planned.name:24} {command_line(experiment, planned.cell)}")


def _run(current: Sweep, missing: list[PlannedRun]) -> int:
    """Run the missing runs, with a progress bar on stderr; return the number of failed runs."""
    from tqdm import tqdm

    failed = 0
    with tqdm(total=len(missing), desc=current.experiment.name, file=sys.stderr, unit="run") as bar:

        def report(done: CompletedRun) -> None:
            nonlocal failed
            failed += not done.finished
            bar.write(_line(done), file=sys.stderr)
            bar.update()

        if missing:
            current.run(missing, report)
    return failed


def _line(done: CompletedRun) -> str:
    if done.record is None or not done.finished:
        status = done.record.status if done.record else "no record"
        return f"{done.planned.name}: {status}: {done.error or 'see its record'}"
    step = done.record.summary.get("step_ms")
    step_time = f"{step['median']:.3g} ms a step (IQR {step['iqr']:.2g}), " if step else ""
    return f"{done.planned.name}: {step_time}{done.wall_s:.1f} s in total"


def _deliver(current: Sweep) -> None:
    from dpexp.tracking import sync
    from dpexp.tracking.errors import StoreError

    try:
        results = list(sync.deliver(home(), current.run_folders()))
    except StoreError as error:
        typer.echo(f"not in MLflow: {error}; the journals stay: {command('runs')} sync", err=True)
        return
    failed = [result for result in results if not result.is_well]
    typer.echo(f"{len(results) - len(failed)} of {len(results)} runs are in MLflow", err=True)
    for result in failed:
        typer.echo(f"{result.run_id}: {result.message}", err=True)


def _verdicts(experiment: Experiment, current: Sweep) -> str:
    from dpexp.report.render import terminal
    from dpexp.study import claims

    return terminal.text(claims.sections(experiment, current.records))

"""Every run of an experiment, each in a process of its own; then the verdict on its claims."""

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
    from dpexp.study.sweep import Done, Slot, Sweep

app = cli.app("Run every config of an experiment, interleaved and repeated, and judge its claims.")

Folder = Annotated[Path, typer.Argument(metavar="experiments/NAME", help="The experiment's folder.")]
Only = Annotated[
    str, typer.Option("--only", help="Only cells of this name or pattern, and single.", metavar="PATTERN")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the newest sweep: run only what is missing.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would run, in order; run and write nothing.")
]
Publish = Annotated[
    bool, typer.Option("--publish", help="Make the Records the experiment's committed result.")
]
Track = Annotated[bool, typer.Option("--track/--no-track", help="Deliver the runs to MLflow afterwards.")]
Order = Annotated[int, typer.Option("--order-seed", help="Seed of the order of the runs.", min=0)]


@app.command()
def sweep(
    folder: Folder,
    only: Only = "",
    resume: Resume = False,
    dry_run: DryRun = False,
    publish: Publish = False,
    track: Track = True,
    order_seed: Order = 0,
) -> None:
    """Run each cell once a round, in an order of its own each round, every run in a process of its own.

    Ends with 1 when a run failed: its Record is kept, and --resume runs it again.
    """
    from dpexp.study import experiment as experiments
    from dpexp.study import sweep as sweeps

    cli.check_environment()
    asked = experiments.load(folder)
    slots = sweeps.plan(asked, only, order_seed)
    chosen = _chosen(asked, resume)
    todo = chosen.missing(slots)
    if dry_run:
        _show(asked, todo, len(slots))
        return
    failed = _run(chosen, todo)
    if track and todo:
        _deliver(chosen)
    typer.echo(_verdicts(asked, chosen))
    if publish:
        typer.echo(f"the committed result is now {chosen.publish()}", err=True)
    raise typer.Exit(cli.Exit.FAILED if failed else cli.Exit.DONE)


def _chosen(asked: Experiment, resume: bool) -> Sweep:
    from dpexp.study.sweep import Sweep, new

    if not resume:
        return new(asked)
    found = Sweep.latest(asked)
    if found is None:
        raise ConfigError(f"--resume: there is no sweep of {asked.name} in {home() / 'runs'} yet")
    return found


def _show(asked: Experiment, todo: list[Slot], of: int) -> None:
    from dpexp.study.sweep import command

    typer.echo(f"{asked.question}\n{len(todo)} of {of} runs, in this order:")
    for each in todo:
        typer.echo(f"  {each.name:24} {command(asked.runs[each.cell])}")


def _run(chosen: Sweep, todo: list[Slot]) -> int:
    """Run what is to do, with a bar on stderr; returns how many failed."""
    from tqdm import tqdm

    failed = 0
    with tqdm(total=len(todo), desc=chosen.experiment.name, file=sys.stderr, unit="run") as bar:

        def tell(done: Done) -> None:
            nonlocal failed
            failed += not done.is_well
            bar.write(_line(done), file=sys.stderr)
            bar.update()

        if todo:
            chosen.run(todo, tell)
    return failed


def _line(done: Done) -> str:
    if done.record is None or not done.is_well:
        status = done.record.status if done.record else "no record"
        return f"{done.slot.name}: {status}: {done.error or 'see its record'}"
    step = done.record.summary.get("step_ms")
    took = f"{step['median']:.3g} ms a step (IQR {step['iqr']:.2g}), " if step else ""
    return f"{done.slot.name}: {took}{done.wall_s:.1f} s in all"


def _deliver(chosen: Sweep) -> None:
    from dpexp.tracking import sync
    from dpexp.tracking.errors import StoreError

    try:
        results = list(sync.deliver(home(), chosen.runs()))
    except StoreError as error:
        typer.echo(f"not in MLflow: {error}; the journals stay: python scripts/runs.py sync", err=True)
        return
    wrong = [result for result in results if not result.is_well]
    typer.echo(f"{len(results) - len(wrong)} of {len(results)} runs are in MLflow", err=True)
    for result in wrong:
        typer.echo(f"{result.run_id}: {result.message}", err=True)


def _verdicts(asked: Experiment, chosen: Sweep) -> str:
    from dpexp.report.render import terminal
    from dpexp.study import claims

    return terminal.text(claims.tell(asked, chosen.records))


if __name__ == "__main__":
    cli.main(app)

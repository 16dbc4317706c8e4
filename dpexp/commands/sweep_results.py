"""What a sweep prints at its end: the comparison of its runs or the verdicts, and what was delivered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpexp.commands.command_line.output import say, show_report
from dpexp.config.printable import printable
from dpexp.config.process import command, home
from dpexp.config.ranges import be, plural

if TYPE_CHECKING:
    from dpexp.study.sweep.sweep import Sweep


def show_results(current: Sweep, *, track: bool) -> None:
    """Write the comparison, deliver the runs with it, and print what the sweep shows."""
    from dpexp.study.sweep.grid import Grid

    comparison = _comparison(current)
    if track:
        _deliver(current)
    show_report(comparison if isinstance(current.experiment, Grid) else _verdicts(current))
    if current.limit is not None:
        say(_decided(current), err=True)


def _deliver(current: Sweep) -> None:
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    try:
        results = list(sync.deliver(home(), current.run_folders(), named=True))
    except StoreError as error:
        say(f"not in MLflow: {error}; the journals stay: {command('runs')} sync", err=True)
        return
    failed = [result for result in results if not result.is_well]
    every, well = len(results), len(results) - len(failed)
    say(f"{well} of {plural(every, 'run')} {be(every)} in MLflow", err=True)
    for result in failed:
        say(f"{result.run_id}: {result.message}", err=True)


def _verdicts(current: Sweep) -> str:
    from dpexp.report.render import terminal
    from dpexp.study.experiment import claims

    return terminal.terminal_text(claims.claim_sections(current.experiment, current.records))


def _decided(current: Sweep) -> str:
    """Whether the claims are decided; of a grid, which cells are faster, and of which it can't be told."""
    from dpexp.study.sweep.grid import Grid

    if isinstance(current.experiment, Grid):
        return "\n".join([f"after {current.rounds} of at most {current.limit} rounds", *_faster(current)])
    undecided = len(current.undecided())
    result = (
        f"{plural(undecided, 'claim')} about time {be(undecided)} undecided"
        if undecided
        else "all claims about time are decided"
    )
    return f"after {current.rounds} of at most {current.limit} rounds {result}"


def _faster(current: Sweep) -> Iterator[str]:
    from dpexp.record.journal.fold import load
    from dpexp.study.experiment.claims import judge
    from dpexp.study.experiment.experiment import ClaimOutcome
    from dpexp.study.experiment.records import measured_runs

    words = {
        ClaimOutcome.HOLDS: "is faster than",
        ClaimOutcome.CONTRADICTED: "is slower than",
        ClaimOutcome.NOT_SHOWN: "may be faster or slower than, which can't be told,",
        ClaimOutcome.NOT_MEASURED: "is not compared with",
    }
    for verdict in judge(current.experiment, measured_runs(current.records, load(current.folder).config)):
        claim = verdict.claim
        yield f"{claim.of} {words[verdict.outcome]} {claim.against}: its step takes {verdict.figures}"
    claimed = {name for each in current.experiment.claims for name in (each.of, each.against)}
    for cell in (cell for cell in current.experiment.runs if cell not in claimed):
        yield f"{cell} is not ranked: no other does the same work"


def _comparison(current: Sweep) -> str:
    """The comparison of the runs, which is also written beside their Records."""
    from dpexp.record.journal.durable import private_files
    from dpexp.record.journal.journal import COMPARISON
    from dpexp.report.compare import files, tables
    from dpexp.report.compare.grouping import compare
    from dpexp.report.render import terminal

    _, *runs = current.run_folders()
    compared = compare(runs)
    with private_files():
        page, *_ = files.write_comparison(compared, current.folder / COMPARISON)
    written = printable(f"this comparison, with its figures: {page.parent}")
    return f"{terminal.terminal_text(tables.comparison_sections(compared), piped=terminal.WIDE)}\n{written}"

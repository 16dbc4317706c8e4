"""What a sweep prints at its end: the comparison of its runs or the verdicts, and what was delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.commands.command_line.output import say, show_report
from dpexp.config.errors import be, plural
from dpexp.config.printable import printable
from dpexp.config.process import command, home

if TYPE_CHECKING:
    from dpexp.study.sweep.sweep import Sweep


def show_results(current: Sweep, *, track: bool) -> None:
    """Write the comparison, deliver the runs with it, and print what the sweep shows."""
    from dpexp.study.sweep.grid import Grid

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
    from dpexp.study.experiment import claims
    from dpexp.study.experiment.records import measured_runs

    runs = measured_runs(current.records)
    return terminal.terminal_text(claims.claim_sections(current.experiment, runs))


def _comparison(current: Sweep) -> str:
    """The comparison of the runs; a task that runs beside others does not write it to the sweep's folder."""
    from dpexp.record.files import private_files
    from dpexp.record.journal import COMPARISON
    from dpexp.report import table, terminal
    from dpexp.report.compare import compare
    from dpexp.report.comparison_page import write_comparison

    _, *runs = current.run_folders()
    compared = compare(runs)
    text = terminal.terminal_text(table.comparison_sections(compared), piped=terminal.WIDE)
    if current.is_shared:
        return text
    with private_files():
        page, _ = write_comparison(compared, current.folder / COMPARISON)
    return f"{text}\n{printable(f'this comparison with its figure: {page}')}"

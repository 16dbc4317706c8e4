"""Repair: what is wrong with runs on this disk and in MLflow, and how it is mended."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from dpexp.record.record import Row
from dpexp.record.runs.check import Problem, record_problems, repair_record
from dpexp.record.runs.clean_files import CleanFiles
from dpexp.tracking.delivery import check
from dpexp.tracking.delivery.ledger import LEDGER
from dpexp.tracking.delivery.sync import deliver, is_child
from dpexp.tracking.errors import StoreError, short_message
from dpexp.tracking.store import patience
from dpexp.tracking.store.store import Store

REPAIRS = 2  # of one run in a check: the first may uncover what needs another


class RunNotComparedError(StoreError):
    """One run could not be compared with the store; others perhaps can."""


def run_problems(
    home: Path, folder: Path, *, with_store: bool, clean: CleanFiles | None = None
) -> list[Problem]:
    """What is wrong with a run, ``with_store`` also in MLflow. Raises StoreError when it cannot be asked.

    ``clean`` spares files in which nothing was found.
    """
    found = [*record_problems(folder, clean), *check.ledger_problems(folder)]
    if not with_store:
        return found
    store = Store.from_environment(home)
    try:
        return [*found, *check.store_problems(store, folder)]
    except StoreError:
        raise
    except Exception as error:  # any store, any driver
        text = f"run {folder.name}: the store {store.name} cannot be asked: {short_message(error)}"
        raise RunNotComparedError(text) from error


def checked(home: Path, runs: Iterable[Path], *, with_store: bool, mend: bool) -> Iterator[Row]:
    """The problems of runs as rows, with ``repaired``; ``mend`` repairs what can be, of sweeps first.

    Raises StoreError; where that is about some of the runs, after the rows of all others. A server whose
    answer was late is asked nothing more.
    """
    failures = []
    with CleanFiles(home / "runs") as clean:
        for folder in sorted(runs, key=is_child) if mend else runs:
            try:
                found, left = _repaired(home, folder, with_store, mend, clean)
            except RunNotComparedError as error:
                failures.append(str(error))
                if patience.is_over():
                    break
                continue
            for problem in dict.fromkeys([*found, *left]):
                yield vars(problem) | {"repaired": problem not in left}
    if failures:
        raise StoreError("; ".join(failures))


def _repaired(
    home: Path, folder: Path, with_store: bool, mend: bool, clean: CleanFiles
) -> tuple[list[Problem], list[Problem]]:
    """The problems of one run, and those that are left; a repair may uncover others, which need another."""
    found = left = run_problems(home, folder, with_store=with_store, clean=clean)
    tried: set[str] = {""}
    for _ in range(REPAIRS if mend else 0):
        repairs = {problem.repair for problem in left}
        if repairs <= tried:
            break
        tried |= repairs
        repair(home, folder, left)
        left = run_problems(home, folder, with_store=with_store, clean=clean)
        found = [*found, *left]
    return found, left


def repair(home: Path, folder: Path, found: list[Problem]) -> None:
    """Write again what derives from the journal, and deliver again what is missing or wrong in the store."""
    repair_record(folder, found)
    repairs = {problem.repair for problem in found}
    if check.FORGET in repairs:
        (folder / LEDGER).unlink(missing_ok=True)
    if repairs & {check.AGAIN, check.NEW_RUN}:
        list(deliver(home, [folder], again=True, new_run=check.NEW_RUN in repairs))

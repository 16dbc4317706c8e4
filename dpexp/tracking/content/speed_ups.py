"""Speed-ups of a sweep's runs over its single device, as the metric ``speed_up`` of each run.

No run knows the others: the sweep's Record has the speed-ups, and whichever of both is delivered last writes
the metric. It is an addition to the run in MLflow, as a user's metrics are: no part of what its journal says.
"""

from pathlib import Path

from dpexp.record.files import JournalError
from dpexp.record.journal import RECORD, RUN_ID
from dpexp.record.record import Record
from dpexp.tracking.content import content
from dpexp.tracking.content.content import SPEED_UP, Point
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.mlflow_run import MlflowRun


def write_speed_ups(run: MlflowRun, folder: Path, record: Record) -> None:
    """Write the speed-up of this run, if its sweep knows it; for a sweep those of its delivered runs."""
    parent = ledger.parent_folder(folder, record)
    if parent is not None and (parent / RECORD).exists():
        _write(run, record, _of_runs(parent).get(record.run_id))
    for run_id, value in _of(record).items():
        child = folder.with_name(run_id)
        entry = ledger.read_ledger(child).get(run.store.name)
        if entry is not None and run.store.active_run(entry.mlflow_run_id, run_id) is not None:
            _write(MlflowRun(run.store, entry.experiment_id, entry.mlflow_run_id), record, value)


def _of_runs(folder: Path) -> dict[str, float]:
    try:
        return _of(Record.load(folder))
    except JournalError:  # which the delivery of the sweep reports
        return {}


def _of(record: Record) -> dict[str, float]:
    """{run id: speed-up} of a sweep's Record."""
    rows = record.summary.get("speed_ups") or []
    return {row["run"]: float(row["speed_up"]) for row in rows if RUN_ID.fullmatch(row["run"])}


def _write(run: MlflowRun, record: Record, value: float | None) -> None:
    if value is None:
        return
    known = run.stored().metrics.get(SPEED_UP)
    if known is None or not content.is_same_value(known, value):
        ended = content.to_epoch_ms(record.ended) or 0
        run.store.log_points(run.run_id, [Point(SPEED_UP, value, ended, 0)])

"""Program: the Record that a cell prints which is not a run of dpexp (``experiment.Program``)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpexp.engine.facts.environment import environment, torch_environment
from dpexp.record import clock
from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record, new_run_id
from dpexp.record.runs.begin import PARENT


def program_record(
    file: str,
    name: str,
    time_ms: Sequence[float],
    rows: int,
    metrics: Mapping[str, list[float]],
    started: str = "",
) -> Record:
    """A finished Record of the sweep that runs ``file``, with steps of ``rows`` samples without losses."""
    ended, times = clock.now(), [round(ms, 6) for ms in time_ms]
    record = Record(
        run_id=new_run_id(),
        name=name,
        strategy=name,
        execution="real",
        status="finished",
        started=started or ended,
        ended=ended,
        parent=os.environ.get(PARENT, ""),
        experiment=Path(file).resolve().parent.name,
        environment=environment() | torch_environment(),
        steps={"time_ms": times, "loss": [None] * len(times), "samples": [rows] * len(times)},
        metrics=dict(metrics),
    )
    summarize(record)
    return record

"""Run the programs of an experiment, one after the other, round by round, and keep the Records that they print.

    python experiments/programs.py experiments/hybrid_speed

``PROGRAMS`` in the experiment's config has a file of its folder and its arguments for each cell. The Records
replace those in ``records/``; ``scripts/report.py experiments/NAME`` then makes the figures of them.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dpexp.engine.facts import environment
from dpexp.engine.torch_facts import torch_environment
from dpexp.record.figures import summarize
from dpexp.record.journal import new_run_id, now
from dpexp.record.record import Record
from dpexp.study.experiment import Experiment, load_experiment
from dpexp.study.records import machine_kind, write_runs


def program_record(
    name: str, time_ms: Sequence[float], rows: int, metrics: Mapping[str, list[float]], started: str = ""
) -> Record:
    """A finished Record with steps of ``rows`` samples without losses."""
    ended, times = now(), [round(ms, 6) for ms in time_ms]
    record = Record(
        run_id=new_run_id(),
        name=name,
        strategy=name,
        execution="real",
        status="finished",
        started=started or ended,
        ended=ended,
        environment=environment() | torch_environment(),
        steps={"time_ms": times, "loss": [None] * len(times), "samples": [rows] * len(times)},
        metrics=dict(metrics),
    )
    summarize(record)
    return record


def measured(experiment: Experiment, cell: str) -> Record:
    """The Record that a cell's program prints."""
    file, *arguments = experiment.programs[cell]
    command = [sys.executable, str(experiment.folder / file), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return Record.from_json(done.stdout)


def main(folder: Path) -> None:
    """Run every program once per round; each round begins with the next one."""
    experiment = load_experiment(folder)
    cells = [*experiment.programs]
    found: dict[str, list[Record]] = {cell: [] for cell in cells}
    for number in range(experiment.repeats):
        first = number % len(cells)
        for cell in cells[first:] + cells[:first]:
            name = f"{cell}.r{number + 1}"
            print(name, file=sys.stderr, flush=True)
            record = measured(experiment, cell)
            record.name, record.experiment = name, experiment.name
            found[cell].append(record)
            write_runs(experiment.records / machine_kind([record]), {cell: found[cell]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

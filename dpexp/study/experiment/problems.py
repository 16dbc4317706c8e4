"""What is wrong with an experiment's committed result: its Records, README, figure, claims and configs."""

from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.consistency.contradictions import contradictions
from dpexp.study.experiment import figure
from dpexp.study.experiment.agreement import disagreements, sweep_disagreements, unpredicted
from dpexp.study.experiment.experiment import CONFIG, README, Experiment
from dpexp.study.experiment.readme import FIGURE, ExperimentReadme
from dpexp.study.experiment.records import (
    CHECKSUMS,
    SWEEP,
    MeasuredRun,
    checksums,
    run_records,
    sweep_record,
)


def committed_problems(readme: ExperimentReadme) -> list[str]:
    """Every contradiction between the committed result, its Records and the config."""
    experiment = readme.experiment
    folder = experiment.folder
    if not readme.runs:
        return [f"{experiment.records}: no Records"]
    update = f"python scripts/report.py experiments/{experiment.name}"
    found = [problem for kind in readme.runs for problem in _record_problems(readme, kind)]
    text = _text(folder / README)
    if readme.render(text) != text:
        found.append(f"{folder / README} is not what its Records give: {update}")
    if not figure.shows(folder / FIGURE, experiment.figure, readme.main_runs):
        found.append(f"{folder / FIGURE} is not drawn from the Records: {update}")
    for kind, verdicts in readme.verdicts.items():
        found += [
            f"{folder / CONFIG}: claim “{verdict.claim.text}”: {verdict.outcome} on {kind}, "
            f"not {verdict.claim.stated}: {verdict.figures}"
            for verdict in verdicts
            if not verdict.is_as_stated
        ]
    return found


def _record_problems(readme: ExperimentReadme, kind: str) -> list[str]:
    experiment, folder, found = readme.experiment, readme.experiment.records / kind, []
    last = _rounds(folder, experiment.repeats)
    if _text(folder / CHECKSUMS) != checksums(folder):
        found.append(f"{folder / CHECKSUMS}: the Records have changed since the sweep; never edit them")
    sweep = sweep_record(folder)
    of_sweep = [*contradictions(sweep), *sweep_disagreements(sweep, run_records(folder))]
    found += [f"{folder / SWEEP}: {problem}" for problem in of_sweep]
    for cell in experiment.runs:
        measured = readme.runs[kind].get(cell, ())
        rounds = [run.round for run in measured]
        if rounds != list(range(1, last + 1)):
            found.append(f"{folder}: cell '{cell}' has rounds {rounds}, not 1 to {last}")
        for run in measured:
            found += [
                f"{folder / run.name}.json{problem}" for problem in _run_problems(experiment, cell, run)
            ]
        found += [f"{folder}: {problem}" for problem in disagreements([run.record for run in measured])]
    return found


def _run_problems(experiment: Experiment, cell: str, run: MeasuredRun) -> list[str]:
    """What is wrong with one Record, as text that follows its path."""
    found = [f": {problem}" for problem in contradictions(run.record)]
    if not (run.record.environment.get("lock") or {}).get("sha256"):
        found.insert(0, " names no lock")
    if changed := experiment.changed_fields(cell, run.record.config):
        found.insert(0, f" was made with another config: {', '.join(changed)}")
    return found


def _rounds(folder: Path, repeats: int) -> int:
    """How many rounds the sweep of these Records planned, or ran until its claims were decided."""
    sweep = sweep_record(folder)
    return int(sweep.summary.get("rounds") or sweep.config.get("repeats") or repeats)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def build_problems(readme: ExperimentReadme) -> list[str]:
    """The cells that can no longer be built, and the Records that differ from what their config predicts."""
    from dpexp.engine.dry_run import dry_run

    experiment, found = readme.experiment, []
    for cell, run in experiment.runs.items():
        if not isinstance(run, RunConfig):
            continue
        try:
            prediction = dry_run(run, with_work=True)
        except ConfigError as error:
            found.append(f"{experiment.folder / CONFIG}: cell '{cell}' no longer builds: {error}")
            continue
        for kind, runs in readme.runs.items():
            for measured in runs.get(cell, ())[:1]:  # the other rounds are compared with the first
                path = experiment.records / kind / f"{measured.name}.json"
                found += [f"{path}: {problem}" for problem in unpredicted(measured.record, prediction)]
    return found

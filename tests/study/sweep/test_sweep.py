"""A sweep: every cell each round, a failure does not stop it, and it resumes after an interruption."""

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest
import swept
from command_lines import ROOT, script
from record_factory import whole

from dpexp.config.errors import ConfigError
from dpexp.engine.facts.environment import lock
from dpexp.record.journal.fold import finish
from dpexp.record.journal.fold import load as load_run
from dpexp.record.journal.journal import Journal
from dpexp.record.journal.reader import JournalReader
from dpexp.record.journal.seal import unseal
from dpexp.record.record import JournalError, Record
from dpexp.study.experiment.claims import judge
from dpexp.study.experiment.experiment import Experiment, load_experiment
from dpexp.study.experiment.records import PlannedRun, measured_runs, read_record, run_records, speed_ups
from dpexp.study.sweep.cell_run import CompletedRun
from dpexp.study.sweep.sweep import Sweep, plan_runs

pytestmark = pytest.mark.usefixtures("forked_child_runs")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment of three cells and two rounds; one cell is killed until the file «mended» exists."""
    return swept.experiment(tmp_path / "small", "fragile")


def test_every_round_runs_every_cell_once_in_its_own_order() -> None:
    planned = plan_runs(load_experiment(ROOT / "experiments" / "seed_tables"))
    cells = {run.cell for run in planned}
    rounds = [[run.cell for run in planned if run.round == number] for number in (1, 2, 3)]
    assert all(set(order) == cells and len(order) == len(cells) for order in rounds)
    assert len({tuple(order) for order in rounds}) > 1
    assert [run.round for run in planned] == sorted(run.round for run in planned)
    assert planned == plan_runs(load_experiment(ROOT / "experiments" / "seed_tables"))


def test_only_keeps_the_single_device(experiment: Experiment) -> None:
    assert {run.cell for run in plan_runs(experiment, only="qui*")} == {"single", "quick"}
    with pytest.raises(ConfigError, match=r"no cell matches 'quik'.*did you mean 'quick'"):
        plan_runs(experiment, only="quik")


def test_a_runs_speed_up_is_over_the_single_device_of_its_round(experiment: Experiment) -> None:
    sweep = Sweep.new(experiment)
    sweep.records.mkdir(parents=True)
    for name, strategy, step_ms in (
        ("single.r1", "single", 4),
        ("two.r1", "whole", 2),
        ("two.r2", "whole", 8),
    ):
        record = whole(2, run_id=name, strategy=strategy, step_ms=step_ms)
        (sweep.records / f"{name}.json").write_text(record.to_json())
    found = {row["run"]: row["speed_up"] for row in speed_ups(run_records(sweep.records))}
    assert found == {"single.r1": 1, "two.r1": pytest.approx(2)}  # the second round has no single device


def test_a_failed_run_does_not_stop_the_sweep_and_resume_runs_only_it(
    experiment: Experiment, dpexp_home: Path
) -> None:
    sweep, reported = Sweep.new(experiment), []
    completed = sweep.run(sweep.missing(plan_runs(experiment)), reported.append)
    assert completed == reported
    assert Counter((run.planned.cell, run.finished, run.error) for run in completed) == {
        ("single", True, ""): 2,
        ("quick", True, ""): 2,
        ("fragile", False, "killed by SIGKILL"): 2,
    }
    parent = load_run(sweep.folder)
    assert (parent.status, parent.summary["done"], parent.summary["failed"]) == ("finished", 4, 2)
    children = [load_run(folder) for folder in (dpexp_home / "runs").iterdir() if folder != sweep.folder]
    assert {(child.parent, child.experiment) for child in children} == {(sweep.folder.name, "small")}
    with pytest.raises(ConfigError, match="2 runs are missing"):
        sweep.publish()

    (experiment.folder / "mended").touch()
    again = Sweep.latest(experiment)
    assert again is not None
    missing = again.missing(plan_runs(experiment))
    assert {run.cell for run in missing} == {"fragile"}
    again.run(missing, reported.append)
    published = again.publish()
    runs = measured_runs(published)
    assert {cell: len(of_cell) for cell, of_cell in runs.items()} == {"single": 2, "quick": 2, "fragile": 2}
    assert all(run.wall_s and run.wall_s > 0 for of_cell in runs.values() for run in of_cell)
    assert read_record(published / "sweep.json").run_id == sweep.folder.name


VARIES = """
tries = pathlib.Path(__file__).with_name("tries")
with open(tries, "a") as file:
    file.write("x")
ms = (1.0, 2.0, 1.1, 1.0, 1.1, 1.0)[tries.stat().st_size - 1]
record.steps["time_ms"] = [ms] * 3
"""


def test_until_decided_a_sweep_ends_after_the_round_that_decides_its_claims(experiment: Experiment) -> None:
    program = experiment.folder / "program.py"
    program.write_text(program.read_text().replace("summarize(record)", VARIES + "summarize(record)"))
    sweep = Sweep.new(experiment, limit=6)
    planned = [PlannedRun("quick", number) for number in range(1, 7)]
    completed = sweep.run(planned, lambda completed: None)
    assert [run.planned.round for run in completed] == [1, 2, 3, 4]
    assert sweep.undecided() == []
    (quick,) = measured_runs(sweep.records).values()
    assert {(run.looks, run.cells) for run in quick} == {((2, 6), 1)}
    assert load_run(sweep.folder).config["order"] == "balanced"
    early = measured_runs(sweep.records)["quick"][:3]
    assert [verdict.outcome for verdict in judge(experiment, {"quick": early})] == ["not shown"]

    again = Sweep.latest(experiment)
    assert again is not None
    assert (again.limit, again.rounds) == (6, 4)
    assert again.run(planned[4:], lambda completed: None) == []
    with pytest.raises(ConfigError, match="small always runs 2 rounds"):
        Sweep.new(experiment, limit=2)


def test_an_interrupted_sweep_resumes_under_the_same_parent(experiment: Experiment) -> None:
    (experiment.folder / "mended").touch()
    sweep, planned = Sweep.new(experiment), plan_runs(experiment)

    def interrupt(completed: CompletedRun) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(planned, interrupt)
    assert load_run(sweep.folder).status == "killed"
    again = Sweep.latest(experiment)
    assert again is not None
    assert again.folder == sweep.folder
    assert again.missing(planned) == planned[1:]


def test_a_cell_that_changed_since_cannot_be_resumed(experiment: Experiment) -> None:
    sweep = Sweep.new(experiment)
    planned = [run for run in plan_runs(experiment) if run.cell == "single"][:1]
    sweep.run(planned, lambda completed: None)
    path = experiment.folder / "config.py"
    path.write_text(path.read_text().replace("steps=3", "steps=4"))
    again = Sweep.latest(load_experiment(experiment.folder))
    assert again is not None
    with pytest.raises(ConfigError, match=r"'single' has changed since that sweep \(steps\)"):
        again.missing(planned)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, among themselves
@pytest.mark.usefixtures("temporary_folder")
@pytest.mark.usefixtures("home_with_store")
def test_in_mlflow_the_runs_are_nested_under_their_sweep(experiment: Experiment, dpexp_home: Path) -> None:
    done = script("sweep.py", experiment.folder, "--only", "quick")
    assert done.returncode == 0, done.stderr
    assert "HOLDS: It is quick." in done.stdout

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{dpexp_home}/mlflow.db")
    (stored,) = client.search_experiments(filter_string="name = 'small'")
    runs = client.search_runs([stored.experiment_id])
    (parent,) = [run for run in runs if run.data.tags["dpexp.strategy"] == "sweep"]
    nested = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.run_name for run in nested) == ["single.r1", "single.r2"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all("step_ms" in run.data.metrics for run in nested)


def test_a_dry_run_shows_the_order_and_writes_nothing(experiment: Experiment, dpexp_home: Path) -> None:
    done = script("sweep.py", experiment.folder, "--dry-run")
    assert done.returncode == 0
    assert "6 of 6 runs" in done.stdout
    longer = script("sweep.py", experiment.folder, "--dry-run", "--until-decided", "--limit", "4")
    assert "12 of 12 runs" in longer.stdout
    assert "python scripts/run.py single --steps 3" in done.stdout
    assert "python program.py quick" in done.stdout
    assert not list(dpexp_home.iterdir())


def test_resume_runs_what_failed_and_publish_replaces_the_records(
    experiment: Experiment, dpexp_home: Path
) -> None:
    def order(*words: str) -> list[str]:
        shown = script("sweep.py", experiment.folder, "--dry-run", *words).stdout
        return re.findall(r"\b(?:single|quick|fragile), run \d", shown)

    assert order("--order-seed", "1") != order() == order("--order-seed", "0")
    failed = script("sweep.py", experiment.folder, "--no-track", "--only", "fragile")
    assert failed.returncode == 1
    (experiment.folder / "mended").touch()
    done = script("sweep.py", experiment.folder, "--resume", "--publish", "--no-track")
    assert done.returncode == 0, done.stderr
    assert "the committed result is now" in done.stderr
    assert not (dpexp_home / "mlflow.db").exists()
    children = [load_run(folder) for folder in (dpexp_home / "runs").iterdir()]
    assert Counter(child.strategy for child in children)["single"] == 2, "those that had ended are kept"
    (published,) = (experiment.folder / "records").iterdir()
    assert {cell: len(runs) for cell, runs in measured_runs(published).items()} == {
        "single": 2,
        "quick": 2,
        "fragile": 2,
    }


def test_a_sweeps_record_is_the_file_that_the_run_wrote(experiment: Experiment) -> None:
    sweep = Sweep.new(experiment)
    (planned,) = [run for run in plan_runs(experiment) if run.name == "single.r1"]
    (completed,) = sweep.run([planned], lambda completed: None)
    assert isinstance(completed.record, Record)
    written = sweep.folder.parent / completed.record.run_id / "record.json"
    of_sweep = (sweep.records / "single.r1.json").read_bytes()
    assert unseal(of_sweep)[0] == unseal(written.read_bytes())[0]


def test_a_reopened_journal_continues_where_it_was_cut(dpexp_home: Path, tmp_path: Path) -> None:
    with Journal(dpexp_home / "runs", "abc") as journal:
        journal.extend({"steps.loss": [1.0, 2.0]})
        with pytest.raises(JournalError, match="another process is writing it"):
            Journal.reopen(journal.folder)
    with open(journal.path, "ab") as file:
        file.write(b'{"seq":1,"at":1,"set":{"sta')
    with Journal.reopen(journal.folder) as again:
        again.extend({"steps.loss": [3.0]})
        again.set(status="finished")
    record = finish(journal.path)
    assert (record.status, record.steps["loss"], record.damage) == ("finished", [1.0, 2.0, 3.0], [])
    assert [entry.get("from") for entry in JournalReader(journal.path)] == [
        {"steps.loss": 0},
        {"steps.loss": 2},
    ]
    with pytest.raises(JournalError, match="cannot append to"):
        Journal.reopen(tmp_path)


def test_a_run_names_the_lock_that_its_environment_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text("# made by hand\nTorch_Extra==1.2.0\nnumpy==2.0.0 ; python_version > '3'\nmissing==1.0\n")
    found = lock(path, {"torch-extra": "1.2.0+cpu", "numpy": "2.1.0"})
    assert found["differs"] == {"numpy": "2.1.0", "missing": None}
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert lock(tmp_path / "none.lock", {}) == {"sha256": None, "differs": None}

"""A sweep: every cell each round, a failure does not stop it, and it resumes after an interruption."""

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from helpers import swept
from helpers.command_lines import script
from helpers.record_factory import whole

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.facts import lock
from dpexp.record.fold import load_record
from dpexp.record.journal import RECORD
from dpexp.study.experiment import Experiment, load_experiment
from dpexp.study.records import Plan, finished_runs, read_runs, speed_ups, write_runs
from dpexp.study.sweep import Sweep

pytestmark = pytest.mark.usefixtures("forked_child_runs")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment of three cells and two rounds; one cell is killed until the file «fixed» exists."""
    return swept.experiment(tmp_path / "small", "fragile")


def newest(experiment: Experiment) -> Sweep:
    found = Sweep.latest(experiment.plan)
    assert found is not None
    return found


def test_every_round_runs_every_cell_once_and_begins_with_the_next_one() -> None:
    cells = ["single", "two", "three"]
    planned = Plan("mine", "mine", {cell: RunConfig("single") for cell in cells}, 3).order
    rounds = [[run.cell for run in planned if run.round == number] for number in (1, 2, 3)]
    assert rounds == [cells, cells[1:] + cells[:1], cells[2:] + cells[:2]]
    assert [run.round for run in planned] == sorted(run.round for run in planned)


def test_a_runs_speed_up_is_over_the_single_device_of_its_round() -> None:
    records = {
        name: whole(2, run_id=name, strategy=strategy, step_ms=step_ms)
        for name, strategy, step_ms in (
            ("single.r1", "single", 4),
            ("two.r1", "whole", 2),
            ("two.r2", "whole", 8),
            ("single-model_wide.r1", "single", 40),
            ("two-model_wide.r1", "whole", 80),
        )
    }
    for name, record in records.items():
        record.config["model"] = "wide" if "wide" in name else "linear"
    found = {row["run"]: row["speed_up"] for row in speed_ups(records)}
    of_wide = {"single-model_wide.r1": 1, "two-model_wide.r1": pytest.approx(0.5)}
    assert found == {"single.r1": 1, "two.r1": pytest.approx(2)} | of_wide, "the second round has no single"


def test_a_failed_run_does_not_stop_the_sweep_and_resume_runs_only_it(experiment: Experiment) -> None:
    sweep, reported = Sweep.new(experiment.plan), []
    completed = sweep.run(experiment.plan.order, reported.append)
    assert completed == reported
    assert Counter((run.planned.cell, run.finished, run.error) for run in completed) == {
        ("single", True, ""): 2,
        ("quick", True, ""): 2,
        ("fragile", False, "killed by SIGKILL"): 2,
    }
    parent = load_record(sweep.folder)
    assert (parent.status, parent.summary["done"], len(parent.summary["speed_ups"])) == ("finished", 4, 4)
    assert {(run.parent, run.experiment) for run in swept.runs_of(sweep)} == {(sweep.folder.name, "small")}
    with pytest.raises(ConfigError, match="2 runs are missing"):
        sweep.publish(experiment.records)

    (experiment.folder / "fixed").touch()
    folder = experiment.records / "cpu"
    write_runs(folder, {cell: [whole(2), whole(3)] for cell in ("quick", "by-hand")})
    again = newest(experiment)
    missing = again.missing()
    assert {run.cell for run in missing} == {"fragile"}
    completed = again.run(missing, reported.append)
    assert again.publish(experiment.records) == folder
    published = read_runs(folder)
    rounds = {cell: list(of_cell) for cell, of_cell in finished_runs(published).items()}
    assert rounds == {cell: [1, 2] for cell in (*experiment.runs, "by-hand")}
    assert published["by-hand.r2"] == whole(3), "the cell of a program"
    for run in completed:
        assert run.record is not None
        written = sweep.folder.with_name(run.record.run_id)
        assert published[run.planned.name] == load_record(written)
        if run.planned.round == 1:
            assert (folder / f"{run.planned.cell}.json").read_bytes() == (written / RECORD).read_bytes()


def test_a_cell_or_a_file_that_changed_since_cannot_be_resumed(experiment: Experiment) -> None:
    (experiment.folder / "fixed").touch()
    sweep = Sweep.new(experiment.plan)
    sweep.run([run for run in experiment.plan.order if run.name == "fragile.r1"], lambda completed: None)
    models, config = (experiment.folder / name for name in ("models.py", "config.py"))
    models.write_text(models.read_text() + "# changed")
    with pytest.raises(ConfigError, match=r"'fragile': .*models.py has changed since the run"):
        newest(experiment).missing()
    config.write_text(config.read_text().replace("steps=3", "steps=4"))
    with pytest.raises(ConfigError, match=r"'fragile' has changed since that sweep \(steps\)"):
        newest(load_experiment(experiment.folder)).missing()


def test_a_dry_run_shows_the_order_and_writes_nothing(experiment: Experiment, dpexp_home: Path) -> None:
    done = script("sweep.py", experiment.folder, "--dry-run")
    assert done.returncode == 0
    assert "6 of 6 runs" in done.stdout
    assert "python scripts/run.py single --steps 3" in done.stdout
    assert not list(dpexp_home.iterdir())


def test_a_sweep_of_an_experiment_ends_with_its_claims_and_publishes(
    experiment: Experiment, dpexp_home: Path
) -> None:
    (experiment.folder / "fixed").touch()
    done = script("sweep.py", experiment.folder, "--publish", "--no-track")
    assert done.returncode == 0, done.stderr
    assert "HOLDS: It is verified." in done.stdout
    assert "the committed result is now" in done.stderr
    assert not (dpexp_home / "mlflow.db").exists()


def test_a_run_names_the_lock_that_its_environment_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text("# made by hand\nTorch_Extra==1.2.0\nnumpy==2.0.0 ; python_version > '3'\nmissing==1.0\n")
    found = lock(path, {"torch-extra": "1.2.0+cpu", "numpy": "2.1.0"})
    assert found["differs"] == {"numpy": "2.1.0", "missing": None}
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert lock(tmp_path / "none.lock", {}) == {"sha256": None, "differs": None}

"""A sweep in jobs: a round a job, which may be requeued or lost, and a sweep that resumes whatever was lost.

submitit's local executor makes real processes, and a Slurm of one node real jobs.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest
import slurm
import swept
from command_lines import script
from submitit import LocalExecutor

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import Journal
from dpexp.record.journal.seal import seal
from dpexp.study.experiment.experiment import Experiment
from dpexp.study.experiment.records import PlannedRun, measured_runs
from dpexp.study.sweep import jobs, slurm_executor
from dpexp.study.sweep.cell_run import CompletedRun, _resumed
from dpexp.study.sweep.sweep import Sweep
from dpexp.study.sweep.sweep_journal import NotStartedError

ROUNDS = [PlannedRun(cell, number) for number in (1, 2) for cell in ("quick", "slow")]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return swept.experiment(tmp_path / "small")


@pytest.fixture
def sweep(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(jobs, "POLL_S", 0.1)
    monkeypatch.setattr(jobs, "_GRACE_S", 0.0)
    return Sweep.new(experiment)


def run(sweep: Sweep, planned: list[PlannedRun]) -> list[CompletedRun]:
    def way(sweep: Sweep, planned: list[PlannedRun]) -> Generator[CompletedRun]:
        return jobs.in_jobs(
            sweep, planned, LocalExecutor(sweep.folder / slurm_executor.JOBS, python=slurm_executor.python())
        )

    return sweep.run(planned, lambda completed: None, way)


def in_background(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


def the_task() -> psutil.Process:
    """The process in which submitit runs the only job at work."""
    (task,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if "submitit.core._submit" in process.cmdline() and process.cmdline()[0] == sys.executable
    )
    return task


def test_each_round_is_a_job_that_runs_its_cells_one_after_the_other(
    experiment: Experiment, sweep: Sweep
) -> None:
    (experiment.folder / "mended").touch()
    completed = run(sweep, ROUNDS)
    assert sorted((one.planned.name, one.finished, one.error) for one in completed) == [
        (planned.name, True, "") for planned in sorted(ROUNDS, key=lambda planned: planned.name)
    ]
    assert all(one.wall_s > 0 for one in completed)
    assert len([*(sweep.folder / slurm_executor.JOBS).glob("*_result.pkl")]) == 2
    parent = load(sweep.folder)
    assert (parent.status, parent.summary["done"], parent.summary["failed"]) == ("finished", 4, 0)
    runs = measured_runs(sweep.records)
    assert {cell: [run.round for run in of_cell] for cell, of_cell in runs.items()} == {
        "quick": [1, 2],
        "slow": [1, 2],
    }
    assert {run.record.parent for of_cell in runs.values() for run in of_cell} == {sweep.folder.name}


def test_a_requeued_job_ends_its_run_and_runs_only_what_its_round_lacks(
    experiment: Experiment, sweep: Sweep
) -> None:
    """By submitit's signal before the time limit; the slow run ends by the SIGTERM that the job sends it."""

    def requeue() -> None:
        wait_until(lambda: "slow" in swept.started(experiment))
        the_task().send_signal(signal.SIGUSR2)
        wait_until(lambda: swept.started(experiment).count("slow") == 2)
        (experiment.folder / "mended").touch()

    requeued = in_background(requeue)
    completed = run(sweep, ROUNDS[:2])
    requeued.join()
    assert [(one.planned.cell, one.finished) for one in completed] == [("quick", True), ("slow", True)]
    assert swept.started(experiment) == ["quick", "slow", "slow"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_runs_of_a_lost_job_have_an_error_and_resume_runs_them(
    experiment: Experiment, sweep: Sweep, number: signal.Signals
) -> None:
    def end() -> None:
        wait_until(lambda: "slow" in swept.started(experiment))
        the_task().send_signal(number)

    ended = in_background(end)
    completed = run(sweep, ROUNDS[:2])
    ended.join()
    assert [(one.planned.cell, one.finished) for one in completed] == [("quick", True), ("slow", False)]
    assert "was lost" in completed[1].error
    assert load(sweep.folder).summary["failed"] == 1
    (experiment.folder / "mended").touch()
    again = Sweep.latest(experiment)
    assert again is not None
    assert [one.planned.name for one in run(again, again.missing(ROUNDS[:2]))] == ["slow.r1"]
    assert swept.started(experiment).count("quick") == 1


def test_what_jobs_did_while_nobody_waited_is_reported_by_the_sweep_that_resumes(
    experiment: Experiment, sweep: Sweep
) -> None:
    (experiment.folder / "mended").touch()

    def dies(sweep: Sweep, planned: list[PlannedRun]) -> Generator[CompletedRun]:
        (sweep.folder / slurm_executor.JOBS).mkdir()
        jobs.Round(sweep, planned).run(threading.Event())
        yield from ()

    assert sweep.run(ROUNDS[:2], lambda completed: None, dies) == []
    again = Sweep.latest(experiment)
    assert again is not None
    missing = again.missing(ROUNDS)
    assert missing == ROUNDS[2:]
    assert {one.planned for one in run(again, missing)} == {*ROUNDS}
    assert all(one.wall_s for of_cell in measured_runs(again.records).values() for one in of_cell)


def test_a_job_whose_own_code_fails_says_why(sweep: Sweep) -> None:
    sweep.records.mkdir(parents=True)
    made_from = {"sweep": sweep.folder.name, "name": "quick.r1", "run": "newer", "bytes": 0, "crc": ""}
    newer = seal('{"schema": 99, "run_id": "newer"}', made_from)
    (sweep.records / "quick.r1.json").write_bytes(newer)
    (sweep.folder / slurm_executor.JOBS).mkdir()
    executor = LocalExecutor(sweep.folder / slurm_executor.JOBS, python=slurm_executor.python())
    job = executor.submit(jobs.Round(sweep, ROUNDS[:1]))
    wait_until(job.done)
    assert "JournalError" in jobs._why(job)
    assert "the record was written by a newer dpexp" in jobs._why(job)


def test_an_interrupted_run_with_a_snapshot_is_continued(
    experiment: Experiment, sweep: Sweep, dpexp_home: Path
) -> None:
    config = RunConfig.from_dict({"strategy": "ddp", "run_name": "ddp.r1", "devices": "2"}, where="")
    for run_id, parent, status in (
        ("aa", "another", "killed"),
        ("bb", sweep.folder.name, "finished"),
        ("cc", sweep.folder.name, "running"),
    ):
        with Journal(dpexp_home / "runs", run_id) as journal:
            journal.set(name="ddp.r1", parent=parent, status=status)
        (dpexp_home / "snapshots" / run_id).mkdir(parents=True)
    assert _resumed(config, sweep.folder).to_dict()["resume"] == "cc"
    other = RunConfig.from_dict(config.to_dict() | {"run_name": "ddp.r2"}, where="")
    assert _resumed(other, sweep.folder).to_dict()["resume"] == ""
    recorded = _resumed(config, sweep.folder).to_dict()
    with_ddp = Experiment(**vars(experiment) | {"runs": {"ddp": config}})
    assert with_ddp.changed_fields("ddp", recorded) == [], "it is the same run"


# --- Slurm ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    if not slurm.is_installed():
        pytest.skip("no Slurm here: apt-get install slurmd slurmctld slurm-client munge")
    with slurm.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def on_slurm(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("on_slurm")
def test_on_slurm_a_resumed_sweep_waits_for_its_job_which_is_requeued(
    experiment: Experiment, sweep: Sweep
) -> None:
    def dies(sweep: Sweep, planned: list[PlannedRun]) -> Generator[CompletedRun]:
        (sweep.folder / slurm_executor.JOBS).mkdir()
        jobs._job(sweep, ROUNDS[:2], slurm_executor.slurm(sweep.folder, ["time=5"]))
        yield from ()

    def requeue() -> None:
        wait_until(lambda: swept.started(experiment).count("slow") == 2)
        job = (sweep.folder / slurm_executor.JOBS / "round-1.job").read_text()
        subprocess.run(["scontrol", "requeue", job], check=True)
        wait_until(lambda: swept.started(experiment).count("slow") == 3)
        (experiment.folder / "mended").touch()

    sweep.run([], lambda completed: None, dies)
    again = Sweep.latest(experiment)
    assert again is not None
    requeued = in_background(requeue)
    completed = again.run(
        again.missing(ROUNDS),
        lambda completed: None,
        lambda sweep, planned: jobs.in_jobs(sweep, planned, slurm_executor.slurm(sweep.folder, ["time=5"])),
    )
    requeued.join()
    assert {(one.planned, one.finished) for one in completed} == {(planned, True) for planned in ROUNDS}
    assert swept.started(experiment).count("quick") == 2
    assert len([*(sweep.folder / slurm_executor.JOBS).glob("*_submitted.pkl")]) == 2
    assert load(sweep.folder).summary["done"] == 4


@pytest.mark.usefixtures("on_slurm")
def test_on_slurm_an_interrupted_sweep_leaves_no_job(experiment: Experiment, sweep: Sweep) -> None:
    def interrupt(completed: CompletedRun) -> None:
        raise KeyboardInterrupt

    def way(sweep: Sweep, planned: list[PlannedRun]) -> Generator[CompletedRun]:
        return jobs.in_jobs(sweep, planned, slurm_executor.slurm(sweep.folder, ["time=5"]))

    with pytest.raises(KeyboardInterrupt):
        sweep.run(ROUNDS, interrupt, way)
    wait_until(lambda: not slurm.command({}, "squeue", "--noheader"))
    assert "slow.r1" not in {path.stem for path in sweep.records.iterdir()}


@pytest.mark.usefixtures("on_slurm")
def test_on_slurm_a_refused_job_leaves_no_job_and_its_reason(
    experiment: Experiment, sweep: Sweep, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = slurm_executor.slurm(sweep.folder, ["time=5"])

    def refuse_the_next(message: str) -> None:
        executor.update_parameters(partition="none")

    with pytest.raises(ConfigError, match=r"--on slurm: sbatch: error: .*invalid partition"):
        sweep.run(ROUNDS, ignore, lambda *run: jobs.in_jobs(*run, executor, refuse_the_next))
    wait_until(lambda: not slurm.command({}, "squeue", "--noheader"))
    parent = load(sweep.folder)
    assert parent.status == "failed"
    assert parent.error is not None
    assert "invalid partition" in parent.error["message"]
    assert not jobs._not_submitted(sweep.folder / slurm_executor.JOBS)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, among themselves
@pytest.mark.usefixtures("on_slurm")
@pytest.mark.usefixtures("home_with_store")
def test_on_slurm_the_command_delivers_the_runs_under_one_parent(dpexp_home: Path) -> None:
    words = ["single", "--devices", "cpu", "--steps", "2", "--phase-steps", "0", "--repeat", "1"]
    done = script("sweep.py", *words, "--on", "slurm", "--slurm", "time=5")
    assert done.returncode == 0, done.stderr
    assert "round 1: job " in done.stderr
    assert "2 of 2 runs are in MLflow" in done.stderr
    assert "Comparison 1: 1 config" in done.stdout
    children = [load(folder) for folder in (dpexp_home / "runs").iterdir()]
    assert sorted((child.strategy, child.status) for child in children) == [
        ("single", "finished"),
        ("sweep", "finished"),
    ]


# --- sbatch refuses the first job ----------------------------------------------------------------


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands on a machine with which no controller speaks."""
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "srun").touch(0o755)
    for name in ("sbatch", "squeue"):
        (commands / name).write_text("#!/bin/sh\necho sbatch: error: no controller >&2\nexit 1\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


def ignore(completed: CompletedRun) -> None:
    """Report nothing."""


@pytest.mark.usefixtures("refusing")
def test_a_sweep_whose_first_job_is_refused_leaves_nothing(dpexp_home: Path) -> None:
    words = ["single", "--devices", "cpu", "--repeat", "1", "--on", "slurm"]
    done = script("sweep.py", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("no controller") == 1
    assert "error: --on slurm: sbatch: error: no controller" in done.stderr
    assert not [path for path in dpexp_home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("refusal", ["sbatch", "no sbatch"])
def test_a_resumed_sweep_whose_job_is_refused_stays_as_it_was(
    refusal: str,
    experiment: Experiment,
    sweep: Sweep,
    refusing: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(completed: CompletedRun) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.run(ROUNDS[:1], interrupt)
    before = load(sweep.folder)
    again = Sweep.latest(experiment)
    assert again is not None
    if refusal == "no sbatch":
        (tmp_path / "commands" / "sbatch").unlink()
        monkeypatch.setenv("PATH", str(tmp_path / "commands"))
    executor = slurm_executor.slurm(sweep.folder, [])
    with pytest.raises(NotStartedError, match=r"--on slurm: .*sbatch"):
        again.run(ROUNDS[1:], ignore, lambda *run: jobs.in_jobs(*run, executor))
    after = load(sweep.folder)
    assert (after.status, after.ended, after.error) == (before.status, before.ended, before.error)
    assert after.status == "killed"
    assert not (sweep.folder / slurm_executor.JOBS).exists()


# --- before anything is submitted ----------------------------------------------------------------


def test_what_cannot_be_submitted_is_bad_usage(dpexp_home: Path) -> None:
    words = ["single", "--devices", "cpu", "--repeat", "1"]
    for extra, message in (
        (["--on", "pbs"], "--on pbs: only slurm is known"),
        (["--slurm", "time=5"], "--slurm: give --on slurm as well"),
        (["--on", "slurm", "--slurm", "tiem=5"], "--on slurm: "),
    ):
        done = script("sweep.py", *words, *extra)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert not list(dpexp_home.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["partition"], "--slurm partition: write NAME=VALUE"),
        (["time=1:00:00"], "--slurm time=1:00:00: submitit takes whole minutes"),
        (["nodes=1-2"], "--slurm nodes=1-2: submitit takes a whole number"),
        (["partitoin=gpu"], r"Unavailable parameter\(s\): \['partitoin'\].* - partition "),
    ],
)
def test_a_bad_parameter_is_an_error_before_anything_is_submitted(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=message):
        slurm_executor.slurm(tmp_path / "sweep", options)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["partition=gpu", "gpus-per-node=2", "exclusive=true"],
            ["partition=gpu", "gpus-per-node=2", "exclusive"],
        ),
        ([], ["time=60", "job-name=dpexp"]),
        (["time=0120", "gpus_per_node=a100:2"], ["time=120", "gpus-per-node=a100:2"]),
        (["account=007", "comment=true", "qos=false"], ["account=007", "comment=true", "qos=false"]),
        (["exclusive=user", "mem=4000", "nodelist=1"], ["exclusive=user", "mem=4000", "nodelist=1"]),
    ],
)
def test_parameters_are_those_of_sbatch(
    words: list[str], lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = submission(words, tmp_path, monkeypatch)
    for line in lines:
        assert f"#SBATCH --{line}\n" in text


def test_false_leaves_a_flag_out_and_lists_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["setup=module load x", "setup=ulimit -n 1", "exclusive=false", "use_srun=false"]
    text = submission(words, tmp_path, monkeypatch)
    assert "exclusive" not in text
    assert "srun" not in text.splitlines()[-2]
    assert "\nmodule load x\nulimit -n 1\n" in text


def submission(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text that sbatch gets."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    executor = slurm_executor.slurm(tmp_path / "sweep", words)
    return str(executor._make_submission_file_text("run", "x"))  # type: ignore[attr-defined]


def test_without_submitit_or_slurm_it_is_an_error_that_names_what_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match='Could not detect "srun"'):
        slurm_executor.slurm(tmp_path, [])
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'dpexp\[slurm\]'"):
        slurm_executor.slurm(tmp_path, [])

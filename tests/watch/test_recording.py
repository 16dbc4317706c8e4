"""A watched loop is recorded as a run is: its journal, its end however that comes, its delivery to MLflow."""

import copy
import gc
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command_lines import ROOT, python, script
from helpers.launching import AGENT
from helpers.mlflow_reader import everything, expected_metrics, history, mlflow_runs, only_run
from helpers.tracking_processes import wait_until
from torch import nn

import dpexp
from dpexp.config.errors import ConfigError, Terminated
from dpexp.distributed.group import ProcessGroup
from dpexp.record.fold import load_record
from dpexp.record.journal import is_open
from dpexp.record.record import Record
from dpexp.report import summary
from dpexp.watch.recording import Recording

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

VERIFIED = {"checked": True, "passed": True, "steps": 4, "output_error": 1e-7, "tolerance": 1e-5}
PROGRAM = """
import os, signal, sys
import torch
from torch import distributed, nn
from dpexp.config.mesh import Mesh
from dpexp.distributed.group import ProcessGroup
from dpexp.watch.recording import Recording

end, ranks = sys.argv[1], int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    distributed.init_process_group("gloo")
group = ProcessGroup(Mesh.of_rows(ranks) if ranks > 1 else None)
model = nn.Linear(5, 2)
run = Recording.begin(model, None, {"clip_norm": 1.0, "weight": torch.sum, "steps": 4})
model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run.laid_out(model, group, "ddp" if ranks > 1 else "watch", optimizer="SGD")
call = {"scope": "outside", "module": "", "replica": None, "device": "cpu"}
rows = 6 - group.rank
run.shapes([{"batch": i, **call, "inputs": [[rows, 5]], "outputs": [[rows, 2]]} for i in range(2)], group)
for step in range(4):
    loss = model(torch.ones(rows, 5)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(1.0 + step / 100, loss.item() if step else None, 11)
run.verified({"checked": True, "passed": True, "steps": 4, "output_error": 1e-7, "tolerance": 1e-5})
for epoch in range(20):
    run.log({"accuracy": epoch / 20, "val.loss": torch.tensor(1 / (1 + epoch))})
print(run.run_id, flush=True)
if end == "fork":
    if not os.fork():
        run.log({"accuracy": 100.0})
        run.step(1.0, 1.0, 1)
        run.close(ValueError("of the child"))
        sys.exit(0)
    os.wait()
if end == "raise" or (end == "restart" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
    raise ValueError("the loop is broken")
if end.isdecimal():
    os.kill(os.getpid(), int(end))
if ranks > 1:
    distributed.destroy_process_group()
"""


@pytest.fixture
def uri(home_with_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DPEXP_TRACK_TIMEOUT", "500")
    return f"sqlite:///{home_with_store / 'mlflow.db'}"


def begin(name: str | None = "mine", **options: Any) -> Recording:
    """A recording that no follower delivers."""
    recording = Recording.begin(nn.Linear(5, 2), name, options)
    assert recording._follower is not None
    recording._follower.kill()
    return recording


@pytest.fixture
def recording(dpexp_home: Path) -> Iterator[Recording]:
    """One that has begun, and is closed at the end."""
    recording = begin(steps=4)
    yield recording
    recording.close()


def run_program(folder: Path, end: str, *before: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the stand-in for a user's program; its run id."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = python(*before, program, end, PYTHONPATH=str(ROOT))
    assert done.stdout, done.stderr
    return done, done.stdout.split()[-1]


def record_of(home: Path, run_id: str) -> Record:
    return load_record(home / "runs" / run_id)


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("none", "finished", None),
        ("fork", "finished", None),
        ("raise", "failed", "ValueError"),
        (str(int(signal.SIGINT)), "killed", "KeyboardInterrupt"),
        (str(int(signal.SIGTERM)), "killed", "LostContact"),
        (str(int(signal.SIGKILL)), "killed", "LostContact"),
    ],
)
def test_a_program_that_never_closes_its_run_ends_it_however_it_ends(
    dpexp_home: Path, uri: str, tmp_path: Path, end: str, status: str, error: str | None
) -> None:
    done, run_id = run_program(tmp_path, end)
    wait_until(lambda: any(each.info.end_time for each in mlflow_runs(uri, run_id)), "the end in MLflow")
    record = record_of(dpexp_home, run_id)
    assert (record.status, (record.error or {}).get("type")) == (status, error)
    assert "warning" not in done.stderr
    assert record.metrics["val.loss"][:5] == pytest.approx([1 / (1 + i) for i in range(5)])
    assert len(record.metrics["accuracy"]) == 20 or record.error == dpexp.record.fold.WITHOUT_END
    found = everything(uri, run_id)
    assert found["status"] == status.upper()
    points = {key: {step: value for step, value, _ in each} for key, each in found["metrics"].items()}
    assert points == expected_metrics(record)
    assert found["params"]["model"] == "Linear"
    assert (found["params"]["weight"], found["params"]["optimizer"]) == ("sum", "SGD")
    assert found["tags"]["dpexp.verified"] == "True"
    assert found["tags"]["dpexp.strategy"] == "watch"
    assert {"shapes.json", "device_map.json", "record.json"} <= found["artifacts"].keys()
    assert "verified to 1e-05" in found["tags"]["mlflow.note.content"] or status != "finished"


def test_ranks_are_one_run_and_a_program_that_starts_again_has_another(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    _, run_id = run_program(tmp_path, "restart", *AGENT, "2", "--max-restarts", "1")
    (failed,) = (path.name for path in (dpexp_home / "runs").iterdir() if path.name != run_id)
    assert record_of(dpexp_home, failed).status in ("failed", "killed")  # the agent ends what still runs
    record = record_of(dpexp_home, run_id)
    assert (record.status, record.strategy, record.execution) == ("finished", "watch", "real")
    assert record.config["layout"] == "ddp"
    assert record.devices["used"] == ["cpu:0", "cpu:1"]
    assert [row["rank"] for row in record.devices["ranks"]] == [0, 1]
    assert [row["replicas"] for row in record.device_map] == [["cpu:1"], ["cpu:1"]]
    assert [(row["replica"], row["device"], row["inputs"]) for row in record.shapes[:2]] == [
        (0, "cpu:0", [[6, 5]]),
        (1, "cpu:1", [[5, 5]]),
    ]
    assert len(record.steps["time_ms"]) == 4
    assert [step for step, _, _ in history(uri, only_run(uri, run_id).info.run_id, "accuracy")] == [
        *range(20)
    ]
    assert only_run(uri, run_id).info.status == "FINISHED"
    assert "batches 0-1: 11 rows -> 6 + 5" in summary(record, full=True)


def test_every_screen_shows_it_and_reproduce_refuses(dpexp_home: Path, recording: Recording) -> None:
    recording.laid_out(nn.Linear(5, 2), ProcessGroup())
    recording.step(1.0, None, 8)
    recording.verified({"checked": True, "passed": False, "cause": "the loss is not divided by 4"})
    recording.close()
    run_id = recording.run_id
    assert "NOT THE SAME" in script("runs.py", "show", run_id).stdout
    assert "watch" in script("runs.py", "list").stdout
    assert script("runs.py", "sync", run_id).returncode == 0
    assert script("report.py", run_id).returncode == 0
    refused = script("runs.py", "reproduce", run_id)
    assert refused.returncode == 2
    assert (
        "is a training loop that was watched, which dpexp cannot run: run its program again" in refused.stderr
    )


# --- one process ----------------------------------------------------------------------------------


def test_two_at_once_are_two_runs_and_a_run_beside_them_works(dpexp_home: Path) -> None:
    threads = set(threading.enumerate())
    first, second = begin("first"), begin("second")
    first.log({"accuracy": 0.25})
    second.log({"accuracy": True})
    record = dpexp.run("single", steps=1, warmup=0, phase_steps=0, check=False, track=False, quiet=True)
    second.close()
    first.close(Terminated("by the scheduler"))
    first.close()
    assert record.status == "finished"
    records = [record_of(dpexp_home, each.run_id) for each in (first, second)]
    assert [(each.name, each.status) for each in records] == [("first", "killed"), ("second", "finished")]
    assert [each.metrics["accuracy"] for each in records] == [[0.25], [1.0]]
    assert len(list((dpexp_home / "runs").iterdir())) == 3
    assert set(threading.enumerate()) <= threads
    with pytest.raises(RuntimeError, match="the run has ended"):
        first.log({"accuracy": 0.5})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit(128 + signal.SIGTERM), "killed"),
        (KeyboardInterrupt(), "killed"),
        (ValueError("no"), "failed"),
    ],
)
def test_what_ends_a_block_is_how_the_run_ends(
    dpexp_home: Path, recording: Recording, error: BaseException, status: str
) -> None:
    recording.close(error)
    record = record_of(dpexp_home, recording.run_id)
    assert (record.status, record.error is None) == (status, status == "finished")


def test_numbers_of_any_kind_are_logged_and_nothing_else(dpexp_home: Path, recording: Recording) -> None:
    weight = torch.ones(1, 1, requires_grad=True)
    for value in (1, 0.5, weight * 2, np.float32(0.25), np.array([3]), math.nan):
        recording.log({"x": value})
    for value in ("1", None, torch.ones(2), np.ones(2), 1j, 10**400, [1]):
        with pytest.raises(ValueError, match=r"metric 'y' is .*: log one number"):
            recording.log({"x": 7.0, "y": value})  # type: ignore[dict-item]
    recording.close()
    assert str(record_of(dpexp_home, recording.run_id).metrics) == "{'x': [1.0, 0.5, 2.0, 0.25, 3.0, nan]}"


def test_a_full_disk_is_said_once_and_the_loop_goes_on(
    dpexp_home: Path, recording: Recording, capfd: pytest.CaptureFixture[str]
) -> None:
    recording.log({"accuracy": 0.5})
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = (dpexp_home / "runs" / recording.run_id / "journal.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        for number in range(20):
            recording.log({"accuracy": number})
            recording.step(1.0, 0.5, 8)
        recording.verified(VERIFIED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    recording.close()
    assert capfd.readouterr().err.count("is recorded no further, the loop goes on") == 1
    record = record_of(dpexp_home, recording.run_id)
    assert (record.status, (record.error or {})["type"]) == ("failed", "JournalError")
    assert record.metrics["accuracy"][0] == 0.5
    assert record.verification["passed"]


def test_it_holds_no_model_and_a_copy_writes_nothing(dpexp_home: Path, recording: Recording) -> None:
    model = nn.Linear(5, 2)
    recording.laid_out(model, ProcessGroup(), "whole", optimizer=torch.optim.SGD(model.parameters()))
    assert load_record(dpexp_home / "runs" / recording.run_id).execution == "passthrough"
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None
    for each in (copy.deepcopy(recording), pickle.loads(pickle.dumps(recording))):
        each.log({"accuracy": 1.0})
        each.close()
    assert record_of(dpexp_home, recording.run_id).metrics == {}
    assert is_open(dpexp_home / "runs" / recording.run_id / "journal.jsonl")


@pytest.mark.parametrize(
    ("name", "variables", "message"),
    [
        ("x" * 300, {}, "at most 250 characters"),
        (None, {"DPEXP_EXPERIMENT": "\n"}, "experiment"),
        (None, {"DPEXP_TRACK_TIMEOUT": "soon"}, "DPEXP_TRACK_TIMEOUT"),
        (None, {"DPEXP_HOME": "/dev/null"}, "DPEXP_HOME"),
        (None, {"RANK": "0"}, "WORLD_SIZE"),
    ],
)
def test_what_cannot_begin_is_a_user_error(
    dpexp_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    variables: dict[str, str],
    message: str,
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message):
        Recording.begin(nn.Linear(5, 2), name, {})
    assert list(dpexp_home.iterdir()) == []


def test_options_are_plain_and_the_experiment_is_that_of_the_environment(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPEXP_EXPERIMENT", "loops")
    recording = begin(None, clip_norm=nn.utils.clip_grad_norm_, weight=nn.MSELoss(), raises=False)
    recording.close()
    record = record_of(dpexp_home, recording.run_id)
    assert record.experiment == "loops"
    assert json.loads(json.dumps(record.config)) == record.config
    assert (record.config["clip_norm"], record.config["weight"]) == ("clip_grad_norm_", "MSELoss")
    assert os.environ["DPEXP_EXPERIMENT"] == record.config["experiment"]

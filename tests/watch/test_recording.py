"""A watched loop is recorded as a run is: its journal, its end however that comes, its delivery to MLflow."""

import gc
import json
import math
import resource
import signal
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command_lines import ROOT, python, script
from helpers.launching import AGENT
from helpers.mlflow_reader import everything, expected_metrics, mlflow_runs, only_run, steps_of
from helpers.tracking_processes import wait_until
from loops import MLP, sgd, train
from torch import nn

import dpexp
from dpexp.config.errors import ConfigError, Terminated
from dpexp.record.fold import WITHOUT_END, load_record
from dpexp.record.record import Record
from dpexp.report import summary

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

PROGRAM = """
import os, sys
import torch
from torch import distributed, nn
import dpexp

end, ranks = sys.argv[1], int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    distributed.init_process_group("gloo")
rows = 6 - (distributed.get_rank() if ranks > 1 else 0)
torch.manual_seed(0)
model = nn.Linear(5, 2)
run = dpexp.watch(model, nn.functional.mse_loss, weight=lambda outputs, targets: len(outputs))
model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
share = rows * ranks / 11 if ranks > 1 else 1
for epoch in range(20):
    for part in range(2):
        (run.loss(model(torch.randn(rows, 5)), torch.zeros(rows, 2)) * share / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    run.log(**{"accuracy": epoch / 20, "val.loss": torch.tensor(1 / (1 + epoch))})
print(run, flush=True)
if end == "fork":
    if not os.fork():
        run.log(accuracy=100.0)
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


def begin(model: nn.Module | None = None, name: str | None = "mine", **options: Any) -> Any:
    """A watch whose run no follower delivers."""
    run = dpexp.watch(nn.Linear(5, 2) if model is None else model, name=name, **options)
    assert run._recording._follower is not None
    run._recording._follower.kill()
    return run


def run_program(folder: Path, end: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run the stand-in for a user's program."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = python(*before, program, end, PYTHONPATH=str(ROOT))
    assert "right: 4 steps" in done.stdout, done.stderr
    return done


def records_of(home: Path) -> list[Record]:
    """The Records of this home, as they have started."""
    return sorted((load_record(path) for path in (home / "runs").iterdir()), key=lambda each: each.started)


def only_record(home: Path) -> Record:
    (record,) = records_of(home)
    return record


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("fork", "finished", None),
        ("raise", "failed", "ValueError"),
        (str(int(signal.SIGINT)), "killed", "KeyboardInterrupt"),
        (str(int(signal.SIGKILL)), "killed", "LostContact"),
    ],
)
def test_a_program_that_never_closes_its_run_ends_it_however_it_ends(
    dpexp_home: Path, uri: str, tmp_path: Path, end: str, status: str, error: str | None
) -> None:
    done = run_program(tmp_path, end)
    (run_id,) = (path.name for path in (dpexp_home / "runs").iterdir())
    wait_until(lambda: any(each.info.end_time for each in mlflow_runs(uri, run_id)), "the end in MLflow")
    record = only_record(dpexp_home)
    assert (record.status, (record.error or {}).get("type")) == (status, error)
    assert "warning" not in done.stderr
    assert record.metrics["val.loss"][:5] == pytest.approx([1 / (1 + i) for i in range(5)])
    assert len(record.metrics["accuracy"]) == 20 or record.error == WITHOUT_END
    found = everything(uri, run_id)
    assert found["status"] == status.upper()
    points = {key: {step: value for step, value, _ in each} for key, each in found["metrics"].items()}
    assert points == expected_metrics(record)
    assert (found["params"]["model"], found["params"]["optimizer"]) == ("Linear", "SGD")
    assert (found["tags"]["dpexp.verified"], found["tags"]["dpexp.strategy"]) == ("True", "watch")
    assert {"shapes.json", "device_map.json", "record.json"} <= found["artifacts"].keys()
    assert "verified to " in found["tags"]["mlflow.note.content"] or status != "finished"


def test_ranks_are_one_run_and_a_program_that_starts_again_has_another(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    run_program(tmp_path, "restart", *AGENT, "2", "--max-restarts", "1")
    failed, record = records_of(dpexp_home)
    assert failed.status in ("failed", "killed")  # the agent ends what still runs
    assert (record.status, record.strategy, record.execution) == ("finished", "watch", "real")
    assert record.config["layout"] == "ddp"
    assert record.devices["used"] == ["cpu:0", "cpu:1"]
    assert [row["rank"] for row in record.devices["ranks"]] == [0, 1]
    assert [row["replicas"] for row in record.device_map] == [["cpu:1"], ["cpu:1"]]
    assert [(row["replica"], row["device"], row["inputs"]) for row in record.shapes[:2]] == [
        (0, "cpu:0", [[6, 5]]),
        (1, "cpu:1", [[5, 5]]),
    ]
    assert record.steps["samples"] == [22] * 4
    assert steps_of(uri, record.run_id, "accuracy") == [*range(20)]
    assert only_run(uri, record.run_id).info.status == "FINISHED"
    assert "batches 0-1: 11 rows -> 6 + 5" in summary(record, full=True)


def test_every_screen_shows_it_and_reproduce_refuses(dpexp_home: Path) -> None:
    with begin(model := MLP(), loss=nn.functional.mse_loss) as run:
        train(run, model, sgd(model.parameters()), micro=2, share=lambda number: 1.0)
    run_id = only_record(dpexp_home).run_id
    assert "NOT THE SAME" in script("runs.py", "show", run_id).stdout
    assert "watch" in script("runs.py", "list").stdout
    assert script("runs.py", "sync", run_id).returncode == 0
    assert script("report.py", run_id).returncode == 0
    refused = script("runs.py", "reproduce", run_id)
    assert refused.returncode == 2
    words = "is a training loop that was watched, which dpexp cannot run: run its program again"
    assert words in refused.stderr


# --- one process ----------------------------------------------------------------------------------


def test_two_at_once_are_two_runs_and_a_run_beside_them_works(dpexp_home: Path) -> None:
    threads = set(threading.enumerate())
    first, second = begin(name="first"), begin(name="second")
    first.log(accuracy=0.25)
    second.log(accuracy=True)
    record = dpexp.run("single", steps=1, warmup=0, phase_steps=0, check=False, track=False, quiet=True)
    second.close()
    first.close(Terminated("by the scheduler"))
    first.close()
    assert record.status == "finished"
    found = [(each.name, each.status, each.metrics.get("accuracy")) for each in records_of(dpexp_home)[:2]]
    assert found == [("first", "killed", [0.25]), ("second", "finished", [1.0])]
    assert set(threading.enumerate()) <= threads
    with pytest.raises(RuntimeError, match="the run has ended"):
        first.log(accuracy=0.5)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "finished"),
        (SystemExit(3), "failed"),
        (SystemExit(128 + signal.SIGTERM), "killed"),
        (KeyboardInterrupt(), "killed"),
    ],
)
def test_what_ends_a_block_is_how_the_run_ends(dpexp_home: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), begin():
        raise error
    record = only_record(dpexp_home)
    assert (record.status, record.error is None) == (status, status == "finished")


def test_numbers_of_any_kind_are_logged_and_nothing_else(dpexp_home: Path) -> None:
    weight = torch.ones(1, 1, requires_grad=True)
    with begin() as run:
        for value in (1, 0.5, weight * 2, np.float32(0.25), np.array([3]), math.nan):
            run.log(x=value)
        for value in ("1", None, torch.ones(2), np.ones(2), 1j, 10**400, [1]):
            with pytest.raises(ValueError, match=r"metric 'y' is .*: log one number"):
                run.log(x=7.0, y=value)
    assert str(only_record(dpexp_home).metrics) == "{'x': [1.0, 0.5, 2.0, 0.25, 3.0, nan]}"


def test_a_full_disk_is_said_once_and_the_loop_goes_on(
    dpexp_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = begin(model := MLP())
    run.log(accuracy=0.5)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    (journal,) = dpexp_home.glob("runs/*/journal.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + 10, limits[1]))
    try:
        train(run, model, sgd(model.parameters()), steps=4)
        for number in range(20):
            run.log(accuracy=number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    run.close()
    assert capfd.readouterr().err.count("is recorded no further, the loop goes on") == 1
    record = only_record(dpexp_home)
    assert (record.status, (record.error or {})["type"]) == ("failed", "JournalError")
    assert record.metrics["accuracy"][0] == 0.5
    assert record.verification["passed"]


def test_a_run_that_goes_on_keeps_no_model(dpexp_home: Path) -> None:
    run = begin(model := MLP())
    train(run, model, sgd(model.parameters()), steps=5)
    recording, left = run._recording, weakref.ref(model)
    del run, model
    gc.collect()
    assert left() is None
    recording.close()


@pytest.mark.parametrize(
    ("name", "variables", "message"),
    [
        ("x" * 300, {}, "at most 250 characters"),
        (None, {"DPEXP_TRACK_TIMEOUT": "soon"}, "DPEXP_TRACK_TIMEOUT"),
        (None, {"DPEXP_HOME": "/dev/null"}, "DPEXP_HOME"),
        (None, {"RANK": "0"}, "WORLD_SIZE"),
    ],
)
def test_what_cannot_begin_is_a_user_error(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, variables: Any, message: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message):
        begin(name=name)
    assert list(dpexp_home.iterdir()) == []


def test_options_are_plain_and_the_experiment_is_that_of_the_environment(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPEXP_EXPERIMENT", "loops")
    begin(clip_norm=nn.utils.clip_grad_norm_, weight=nn.MSELoss()).close()
    record = only_record(dpexp_home)
    assert record.experiment == record.config["experiment"] == "loops"
    assert json.loads(json.dumps(record.config)) == record.config
    assert (record.config["clip_norm"], record.config["weight"]) == ("clip_grad_norm_", "MSELoss")

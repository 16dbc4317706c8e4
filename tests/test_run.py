"""One tracked run from start to end, as a user starts it: real processes and a real SQLite store."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import needs
import pytest
import torch
from command_lines import PATIENCE_S, ROOT, SCRIPT, script, shared

import dpexp
from dpexp import live
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.record import Record
from dpexp.run import execute

USER_ERRORS = ROOT / "tests" / "helpers" / "user_error_cases.py"
RUN = [sys.executable, SCRIPT]


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return script("run.py", *words)


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return when the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout_s} s"
        time.sleep(0.01)


def only_run(home: Path) -> Record:
    (folder,) = (home / "runs").iterdir()
    return Record.load(folder)


class Freezes(torch.nn.Linear):
    """Counts how often imports were frozen before it was made."""

    counts: ClassVar[list[int]] = []
    made_after = -1

    def __init__(self) -> None:
        super().__init__(5, 2)
        Freezes.made_after = len(self.counts)


@pytest.mark.parametrize("is_last", [True, False])
def test_imports_but_nothing_of_the_user_are_frozen_where_the_process_ends_after_the_run(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """The garbage collector searched them for cycles for a second after the last line."""
    monkeypatch.setattr(gc, "freeze", lambda: Freezes.counts.append(1))
    Freezes.counts.clear()
    with live.named({"model": Freezes}) as names:
        config = RunConfig("single", devices="cpu", track=False, steps=1, warmup=0, **names)
        assert execute(config, quiet=True, is_last=is_last).error is None
    assert len(Freezes.counts) == Freezes.made_after == int(is_last)


def test_a_credential_in_a_config_is_not_in_its_record(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("of sesame2").mkdir()
    Path("of sesame2/words.bin").write_text("to be or not to be " * 20)
    data = "text:of sesame2/words.bin,length=8"
    config = RunConfig("whole", virtual=2, model="rnn:in=5", data=data, steps=2, track=False)
    monkeypatch.setenv("DB_TOKEN", "of sesame2")
    record = dpexp.run(config, quiet=True)
    recorded = config.to_dict() | {"data": "text:***/words.bin,length=8"}
    assert (record.status, record.config) == ("finished", recorded)
    assert record.config_digest == RunConfig.from_dict(recorded).digest()
    assert "sesame2" not in record.to_json()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, among themselves
def test_hybrid_is_verified_recorded_and_in_mlflow(dpexp_home: Path) -> None:
    done = cli("hybrid", "--virtual", "1", "--steps", "5", "--json", "--track-timeout", str(PATIENCE_S))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "finished"
    assert record["verification"]["passed"] is True
    assert {row["module"]: row["device"] for row in record["device_map"]} == {
        "embedding": "cpu",
        "linear": "cpu:0",
    }

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{dpexp_home}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'dpexp'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["dpexp.run_id"] == record["run_id"]
    assert run.data.params["strategy"] == "hybrid"
    assert run.data.params["sparse"] == "False"
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [point.value for point in losses] == record["steps"]["loss"]
    assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {
        "shapes.json",
        "device_map.json",
        "record.json",
    }


def test_the_main_process_never_imports_mlflow(dpexp_home: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import dpexp\n"
        "assert 'torch' not in sys.modules\n"
        "record = dpexp.run(dpexp.RunConfig('single', steps=2, devices='cpu'), quiet=True)\n"
        "assert record.status == 'finished', record.status\n"
        "assert 'torch' in sys.modules\n"
        "heavy = {'mlflow', 'matplotlib', 'pandas', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert callable(dpexp.run)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_stdout_has_the_summary_and_nothing_else(dpexp_home: Path) -> None:
    done = cli("whole", "--devices", "cpu", "--steps", "3", "--no-track")
    assert done.returncode == 0, done.stderr
    for words in ("passthrough", "--virtual", "(30, 5)", "(30, 2)", "verified"):
        assert words.lower() in done.stdout.lower()


def test_quiet_prints_nothing(dpexp_home: Path) -> None:
    done = cli("single", "--devices", "cpu", "--steps", "3", "--no-track", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert only_run(dpexp_home).status == "finished"


def test_a_layout_that_fails_verification_exits_with_1_and_is_recorded(dpexp_home: Path) -> None:
    done = cli("whole", "--virtual", "2", "--model", f"{USER_ERRORS}:Centered", "--no-track")
    assert done.returncode == 1
    assert "does not compute what a single device computes" in done.stderr
    assert ": step 1 (30 rows): outputs differ by 2.8e-01; " in done.stderr
    assert "allowed 1e-12" in done.stderr
    assert "Traceback" not in done.stderr
    record = only_run(dpexp_home)
    assert record.status == "failed"
    assert record.verification["passed"] is False
    assert record.error is not None
    assert record.error["type"] == "VerificationError"
    assert "Traceback" in record.error["traceback"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_its_steps(dpexp_home: Path, number: signal.Signals, code: int) -> None:
    words = ["single", "--devices", "cpu", "--steps", "10000000", "--no-track"]
    process = shared().start(SCRIPT, *words)
    try:
        wait_until(lambda: _steps(dpexp_home))
        process.send_signal(number)
        _, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in stderr
    record = only_run(dpexp_home)
    assert record.status == "killed"
    assert len(record.steps["time_ms"]) == len(record.steps["loss"]) > 0


def _steps(home: Path) -> int:
    folders = list((home / "runs").glob("*/journal.jsonl"))
    return len(Record.load(folders[0].parent).steps["time_ms"]) if folders else 0


def test_without_mlflow_a_run_is_recorded_like_any_other_and_exits_with_3(
    dpexp_home: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked" / "mlflow"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'mlflow'\", name='mlflow')\n"
    )
    done = subprocess.run(
        [*RUN, "single", "--devices", "cpu", "--steps", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(blocked.parent)},
        check=False,
    )
    assert done.returncode == 3
    assert "mlflow cannot be imported here (No module named 'mlflow')" in done.stderr
    assert "sync" in done.stderr
    assert "Traceback" not in done.stderr
    assert only_run(dpexp_home).status == "finished"
    assert not (dpexp_home / "mlflow.db").exists()
    assert script("runs.py", "sync").returncode == 0


def test_run_raises_the_error_that_ended_it_after_recording_it(dpexp_home: Path) -> None:
    with pytest.raises(Exception, match="the loss became"):
        dpexp.run(RunConfig("single", lr=1e30, devices="cpu", track=False), quiet=True)
    assert only_run(dpexp_home).status == "failed"


def test_a_run_that_never_starts_writes_nothing(dpexp_home: Path) -> None:
    with pytest.raises(ConfigError):
        execute(RunConfig("block", options={"block": ["nope"]}, track=False))
    assert not list(dpexp_home.iterdir())


def test_a_run_restores_torchs_number_of_threads(dpexp_home: Path) -> None:
    import torch

    before = torch.get_num_threads()
    config = RunConfig("single", steps=2, threads=before + 1, devices="cpu", track=False)
    assert dpexp.run(config, quiet=True).environment["threads"] == before + 1
    assert torch.get_num_threads() == before


def test_a_model_that_raises_late_keeps_all_steps_before(dpexp_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text(
        "import torch\n"
        "class Late(torch.nn.Linear):\n"
        "    calls = 0\n"
        "    def example(self, samples, generator):\n"
        "        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)\n"
        "    def forward(self, x):\n"
        "        Late.calls += 1\n"
        "        if Late.calls == 100:\n"
        "            raise ValueError('the 100th call')\n"
        "        return super().forward(x)\n"
        "def build():\n"
        "    return Late(5, 2)\n"
    )
    with pytest.raises(ValueError, match="the 100th call"):
        dpexp.run(RunConfig("single", model=f"{source}:build", devices="cpu", track=False), quiet=True)
    record = only_run(dpexp_home)
    assert record.status == "failed"
    assert len(record.steps["time_ms"]) == len(record.steps["loss"]) >= 30


def test_complex_parameters_stay_complex(dpexp_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "waves.py"
    source.write_text(
        "import torch\n"
        "class Waves(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.phase = torch.nn.Parameter(torch.randn(5, 2, dtype=torch.complex64))\n"
        "    def example(self, samples, generator):\n"
        "        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)\n"
        "    def forward(self, x):\n"
        "        return (x.to(self.phase.dtype) @ self.phase).abs()\n"
        "def build():\n"
        "    return Waves()\n"
    )
    record = dpexp.run(RunConfig("whole", model=f"{source}:build", virtual=2, track=False), quiet=True)
    assert record.device_map[0]["dtype"] == "complex64"
    assert record.verification["passed"] is True


def test_run_returns_a_record_that_a_notebook_can_show(dpexp_home: Path) -> None:
    record: Any = dpexp.run(RunConfig("whole", virtual=2, steps=3, track=False), quiet=True)
    assert isinstance(record, dpexp.Record)
    assert Record.from_dict(record.to_dict()).summary == record.summary
    assert "cpu:1" in record._repr_markdown_()


def test_an_interrupt_during_the_imports_prints_one_message_and_writes_nothing(dpexp_home: Path) -> None:
    words = [*RUN, "single", "--devices", "cpu", "--no-track", "--steps", "10000000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "libtorch" in maps.read_text())
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, stdout, stderr) == (130, "", "error: interrupted\n")
    assert not list(dpexp_home.iterdir())


def test_a_signal_does_not_interrupt_the_import_of_torch(dpexp_home: Path) -> None:
    """Raised inside, it became a RecursionError, or ended the process by SIGABRT."""
    program = f"""
import os, signal, sys
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                print("before torch", file=sys.stderr)
            except BaseException:
                print("inside the import", file=sys.stderr)
                raise
sys.meta_path.insert(0, Signals())
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["run.py", "single", "--no-track", "--steps", "3"]
from dpexp.commands.run import app
from dpexp.commands.app import run_app
run_app(app)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "before torch\nerror: ended by SIGTERM\n")
    assert not list(dpexp_home.iterdir())


def test_an_error_that_a_signal_became_before_the_run_is_the_signal(dpexp_home: Path, tmp_path: Path) -> None:
    (tmp_path / "cut_short.py").write_text("""
import os, signal
def build():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        [None for _ in range(10)]
    except BaseException:
        raise RecursionError("half imported") from None
""")
    words = ("single", "--no-track", "--model", "cut_short:build")
    done = script("run.py", *words, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (143, "error: ended by SIGTERM\n")


def test_a_full_disk_ends_the_run_with_one_message_and_a_record_of_the_written_steps(
    dpexp_home: Path,
) -> None:
    disk = needs.disk(dpexp_home, "size=200k")
    words = ["single", "--devices", "cpu", "--no-track", "--steps", "10000000", "--json"]
    done = subprocess.run(
        [*disk, *RUN, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert "No space left on device" in message
    record = json.loads(done.stdout)
    assert record["status"] in ("failed", "killed"), "killed where the line with its end has no room"
    assert len(record["steps"]["loss"]) > 100


def test_an_interrupt_while_waiting_for_the_delivery_leaves_a_finished_run_to_sync(
    dpexp_home: Path,
) -> None:
    words = ["single", "--devices", "cpu", "--steps", "2", "--track-timeout", str(PATIENCE_S)]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts requests and answers none
        store = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = shared().start(SCRIPT, *words, MLFLOW_TRACKING_URI=store)
        try:
            assert process.first_line().startswith("Run single-linear-cpu"), "the summary does not wait"
            wait_until(lambda: list(dpexp_home.glob("runs/*/record.json")))
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate()
        finally:
            process.kill()
    record = only_run(dpexp_home)
    assert (process.returncode, record.status) == (3, "finished")
    assert "verified" in stdout
    assert stderr.strip() == (
        "interrupted while waiting; delivery continues in the background; to make sure: "
        f"python scripts/runs.py sync {record.run_id}"
    )

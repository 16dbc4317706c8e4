"""Scene: a home in which one fault is done, with commands that must end and must leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import RESERVE

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 300.0
"""A command that takes longer hangs; the longest that does not takes a fifth of it."""
ENDING_S = 90.0
"""How long uploaders and ranks may outlive their run: twice what docs/tracking.md promises."""
POLL_S = 0.05
_SCENE = "SOAK_SCENE"
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
"""Its own folder of logs is given to it: it leaves it where SIGTERM ends it."""


@dataclass
class Scene:
    """``name`` is that of the fault and of its run; ``hangs`` is set by a command that had to be killed."""

    home: Path
    name: str = "soak"
    variables: dict[str, str] = field(default_factory=dict)
    folder: Path = ROOT
    prefix: tuple[str, ...] = ()
    """A command that replaces itself by the rest of its words."""
    hangs: bool = False

    def of(self, name: str, *, prefix: tuple[str, ...] = (), **variables: str) -> Scene:
        """A scene in the same home, with a temporary directory of its own."""
        return replace(self, name=name, prefix=prefix, variables=self.variables | variables, hangs=False)

    @property
    def _torchrun(self) -> tuple[str, ...]:
        return (*_TORCHRUN, "--log-dir", str(self.home / "torchrun"))

    @property
    def temporary(self) -> Path:
        return self.home / "tmp" / self.name

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a script, ``run.py single …``, or ``torchrun run.py …`` with two ranks."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        launcher, words = (self._torchrun, words[1:]) if words[0] == "torchrun" else ((), words)
        command = [*self.prefix, sys.executable, *launcher, str(ROOT / "scripts" / words[0]), *words[1:]]
        env = os.environ | {"DPEXP_HOME": str(self.home), "TMPDIR": str(self.temporary)}
        env |= {_SCENE: self._mark, "TORCHINDUCTOR_CACHE_DIR": str(self.home / "inductor")} | self.variables
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
        return subprocess.Popen(command, env=env, cwd=self.folder, text=True, **options)

    def wait(self, process: subprocess.Popen[str]) -> int:
        """The exit code of a process; one that hangs is killed."""
        try:
            return process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.hangs = True
            for each in self.processes():
                _kill(each)
            return process.wait()

    def run(self, *words: str, **options: Any) -> int:
        """The exit code of a script."""
        return self.wait(self.start(*words, **options))

    def printed(self, *words: str) -> str:
        """What a script prints on stdout and stderr."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        with open(self.temporary / "printed", "w+") as file:
            self.run(*words, stdout=file, stderr=file)
            file.seek(0)
            text = file.read()
        (self.temporary / "printed").unlink()
        return text

    def output(self, *words: str) -> Any:
        """The JSON that ``runs.py WORDS --json`` prints; the exit code of ``check`` says only what it prints."""
        process = self.start("runs.py", *words, "--json", stdout=subprocess.PIPE)
        text, _ = process.communicate(timeout=HANG_S)
        return json.loads(text)

    def check(self, *words: str) -> set[str]:
        """The runs of which ``runs.py check --store`` finds something wrong."""
        return {row["run"] for row in self.output("check", "--store", *words)["problems"]}

    def check_and_repair(self, *runs: str) -> tuple[set[str], set[str]]:
        """What ``check`` finds of these runs or of all, and what it still finds after ``--repair``."""
        found = self.check(*runs)
        if not found:
            return found, set()
        self.check("--repair", *runs)
        return found, self.check(*runs)

    def run_ids(self) -> list[str]:
        """The runs of this name."""
        return [row["run_id"] for row in self.output("list") if row["name"] == self.name]

    @property
    def _mark(self) -> str:
        return f"{self.home}/{self.name}"

    def processes(self) -> list[psutil.Process]:
        """Those that this scene has started, directly or not, and that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_SCENE) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """What outlives the fault: processes, which are killed, and files in the temporary directory.

        What a process that was killed had there is removed by ``reap``.
        """
        deadline = time.monotonic() + ENDING_S
        while (processes := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        names = [" ".join(Path(word).name for word in process.cmdline()[:4]) for process in processes]
        for process in processes:
            _kill(process)
        if self.temporary.is_dir() and any(self.temporary.iterdir()):
            self.run("runs.py", "reap")
        files = self.temporary.iterdir() if self.temporary.is_dir() else ()
        return [*names, *(path.name for path in files)]


def used_s(pid: int) -> float:
    """The processor time of a process and of all that it has started: a clock that no load of others moves."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(pid)
        for process in [main, *main.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def wait_until_used(process: subprocess.Popen[str], seconds: float) -> float:
    """Wait until a process has used so much processor time, or has ended; how much it has used."""
    used = 0.0
    while process.poll() is None and used < seconds:
        time.sleep(POLL_S)
        used = max(used, used_s(process.pid))
    return used


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def is_tracked(home: Path, run_id: str) -> bool:
    """Whether a run was started with tracking; of a journal without its first lines nothing says so."""
    return bool(load(home / "runs" / run_id).config.get("track"))


def leftovers(folder: Path) -> list[str]:
    """What killed processes have left in a folder of the home."""
    names = [path.name for path in folder.rglob(".*")]
    return [name for name in names if name.endswith(".tmp") or name == RESERVE]


def copies(store: str, run_id: str) -> int:
    """How many runs the MLflow store has of a run."""
    from mlflow.tracking import MlflowClient

    return len(mlflow_runs(MlflowClient(store), run_id))


def mlflow_runs(client: Any, run_id: str) -> list[str]:
    """The MLflow runs of a run."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`dpexp.run_id` = '{run_id}'")
    return [run.info.run_id for run in found]


def embedded(home: Path) -> str:
    """The address of a home's own store."""
    return f"sqlite:///{home / 'mlflow.db'}"

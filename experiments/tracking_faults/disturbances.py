"""Disturbances: what is done to the processes of a run while it runs and after, in ``soak.py``."""

from __future__ import annotations

import contextlib
import functools
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from damage import flip, make_pipe
from scene import POLL_S, ROOT, Scene, copies, embedded, wait_until_used
from stores import dripping_server, locked_database

from dpexp.record.journal.journal import JOURNAL

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

COMMON = ("--no-check", "--quiet", "--track-timeout", "120", "--threads", "1")
SINGLE = ("run.py", "single", "--steps", "1000", *COMMON)
OFF = (*SINGLE, "--no-track")
SOON = (*SINGLE, "--track-timeout", "20")
"""It waits for nothing that does not come."""
RESUMED = ("run.py", "hybrid", "--virtual", "1", "--steps", "3000", "--snapshot-every", "100", *COMMON)
_IN_RANKS = ("--steps", "300", "--snapshot-every", "20", "--comm-timeout", "15", *COMMON)
DDP = ("run.py", "ddp", "--devices", "2", *_IN_RANKS)
FSDP = ("run.py", "fsdp", "--devices", "2", *_IN_RANKS)
HYBRID = ("torchrun", "run.py", "hybrid", *_IN_RANKS)
KILLED_FOLD = """
import os, signal, sys
from pathlib import Path
from dpexp.record.journal.fold import finish
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
finish(Path(sys.argv[1]))
"""
Action = Callable[[Scene, random.Random], bool]
"""Does something, and returns whether nothing was lost by it."""


@dataclass(frozen=True)
class Disturbance:
    """Signals to processes of a run at a moment between two parts of its time, and what else is done to it."""

    targets: Sequence[tuple[str, signal.Signals]] = ()
    first: float = 0.0
    last: float = 1.0
    words: Sequence[str] = SINGLE
    store: Callable[[Path], str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    limit: tuple[int, int, int] | None = None
    """A limit of ``resource``, drawn between two values."""
    read_only: bool = False
    """The folder of MLflow's artifacts cannot be written."""
    in_experiment: bool = False
    """It has an experiment in MLflow for itself."""
    deletes_folder: bool = False
    wakes_s: float | None = None
    """Whoever was stopped continues so many seconds after the signal; 0: after the end of the run."""
    meanwhile: Action | None = None
    after: Action | None = None

    @property
    def has_moment(self) -> bool:
        """Whether something is done while the run runs."""
        return bool(self.targets or self.deletes_folder or self.meanwhile)


@dataclass(frozen=True)
class Ending:
    """How a fault was done, what processes and files it left, and whether what followed went well."""

    how: str
    left: list[str]
    is_well: bool


def disturb(scene: Scene, fault: Disturbance, moment: float, rng: random.Random) -> Ending | None:
    """Start a run in a folder with another ``dpexp``, and do the fault when it has used so much processor time.

    None if the run had ended before.
    """
    folder = scene.folder = scene.home / "folders" / scene.name
    (folder / "dpexp").mkdir(parents=True)
    (folder / "dpexp" / "__init__.py").write_text("raise ImportError('of the working directory')")
    limit = _drawn(fault.limit, rng) if fault.limit else None
    prefix = read_only(scene.home / "mlruns") if fault.read_only else ()
    disturbed = scene.of(scene.name, prefix=prefix, **fault.variables)
    if fault.store is not None:
        disturbed.variables["MLFLOW_TRACKING_URI"] = fault.store(scene.home)
    words = [*fault.words, "--run-name", scene.name]
    words += ["--experiment", scene.name] if fault.in_experiment else []
    process = disturbed.start(*words, preexec_fn=functools.partial(set_limit, *limit) if limit else None)
    used, hit = 0.0, []
    if fault.has_moment:
        used = wait_until_used(process, moment)
        while (
            process.poll() is None and not (hit := _all_targets(process.pid, fault.targets)) and fault.targets
        ):
            time.sleep(POLL_S)
        if process.poll() is not None:
            disturbed.left()
            return None
    for victim, number in hit:
        _send(victim, number)
    if fault.deletes_folder:
        shutil.rmtree(folder)
        scene.folder = ROOT
    if fault.wakes_s:
        time.sleep(fault.wakes_s)
        _wake(hit)
    well = fault.meanwhile is None or fault.meanwhile(scene, rng)
    code = disturbed.wait(process)
    if fault.wakes_s == 0:
        _wake(hit)
    left = disturbed.left()
    well &= fault.after is None or fault.after(scene, rng)
    scene.hangs |= disturbed.hangs
    how = f"after {used:.1f} s" if fault.has_moment else f"limit {limit and limit[1]}"
    return Ending(f"{how}; exit code {code}; {'' if well else 'not '}well", left + scene.left(), well)


def _all_targets(
    pid: int, targets: Sequence[tuple[str, signal.Signals]]
) -> list[tuple[psutil.Process, signal.Signals]]:
    """The processes to signal; none until each target has one."""
    found = [(_targets(pid, target), number) for target, number in targets]
    if not all(victims for victims, _ in found):
        return []
    return [(victim, number) for victims, number in found for victim in victims]


def read_only(folder: Path) -> tuple[str, ...]:
    """The beginning of a command for which a folder is read-only, for root too."""
    folder.mkdir(exist_ok=True)
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder))


def _drawn(limit: tuple[int, int, int], rng: random.Random) -> tuple[int, int]:
    kind, low, high = limit
    return kind, int(low * (high / low) ** rng.random())


def set_limit(kind: int, value: int) -> None:
    """Set a limit of ``resource`` in this process."""
    resource.setrlimit(kind, (value, value))


def _wake(stopped: Sequence[tuple[psutil.Process, signal.Signals]]) -> None:
    for victim, _ in stopped:
        _send(victim, signal.SIGCONT)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _targets(pid: int, name: str) -> list[psutil.Process]:
    """The process of a run, its uploader, one of its ranks or all of them, if they exist at this moment."""
    found = []
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(pid)
        if name == "run":
            return [main]
        for child in main.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                is_uploader = "dpexp.tracking.process.uploader_process" in child.cmdline()
                rank = child.environ().get("RANK")
                is_meant = {"uploader": is_uploader, "rank": rank == "1", "all": True}
                found += [child] if is_meant[name] else []
    return found


# --- after the run, or meanwhile -----------------------------------------------------------------


def resume(scene: Scene, rng: random.Random) -> bool:
    """Resume the run if it has snapshots: it must finish."""
    runs = [run for run in scene.run_ids() if (scene.home / "snapshots" / run).exists()]
    return all(scene.run(*RESUMED, "--run-name", scene.name, "--resume", run) == 0 for run in runs)


def resume_twice_at_once(scene: Scene, rng: random.Random) -> bool:
    """Two processes resume the run: one does, and the other is refused or finds it finished."""
    for run in scene.run_ids():
        if (scene.home / "snapshots" / run).exists():
            words = (*RESUMED, "--run-name", scene.name, "--resume", run)
            codes = sorted(scene.wait(each) for each in [scene.start(*words) for _ in range(2)])
            return codes in ([0, 2], [0, 0])
    return True


def resume_after(damage: Callable[[Path, random.Random], None]) -> Action:
    """Damage the newest snapshot; the run resumes from the one before, or is refused where there is none."""

    def act(scene: Scene, rng: random.Random) -> bool:
        well = True
        for run in scene.run_ids():
            snapshots = sorted((scene.home / "snapshots" / run).glob("step-*.pt"))
            if snapshots:
                damage(snapshots[-1], rng)
                code = scene.run(*RESUMED, "--run-name", scene.name, "--resume", run)
                well &= code == (0 if len(snapshots) > 1 else 2)
        return well

    return act


def cut_in_half(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def kill_fold(scene: Scene, rng: random.Random) -> bool:
    for run in scene.run_ids():
        journal = scene.home / "runs" / run / JOURNAL
        subprocess.run([sys.executable, "-c", KILLED_FOLD, str(journal)], cwd=ROOT, check=False)
    return True


def read_at_once(scene: Scene, rng: random.Random) -> bool:
    """``sync``, ``reap`` and ``check --repair`` at the same time, while the run runs."""
    commands = (["sync"], ["reap"], ["check", "--store", "--repair"], ["sync"])
    codes = [scene.wait(each) for each in [scene.start("runs.py", *words) for words in commands]]
    return set(codes) <= {0, 1}  # 1: ``check`` has found what it repaired


def reproduce(scene: Scene, rng: random.Random) -> bool:
    """Reproduce a run without tracking: what runs for that is not tracked either."""
    code = scene.run("runs.py", "reproduce", "--runs", "1", scene.name)
    new = [row["run_id"] for row in scene.output("list") if row["name"] == f"again {scene.name}"]
    scene.run("runs.py", "sync")
    return code == 0 and len(new) == 1 and not copies(embedded(scene.home), new[0])


def in_mlflow(change: Callable[[MlflowClient, str, str], object]) -> Action:
    """Do what MLflow's page can do to the run and its experiment, as soon as both exist."""

    def act(scene: Scene, rng: random.Random) -> bool:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(embedded(scene.home))
        while scene.processes():
            experiment = client.get_experiment_by_name(scene.name)
            runs = client.search_runs([experiment.experiment_id]) if experiment else []
            if experiment and runs:
                change(client, experiment.experiment_id, runs[0].info.run_id)
                return True
            time.sleep(0.2)
        return True

    return act


def restore_experiment(scene: Scene, rng: random.Random) -> bool:
    """Restore a deleted experiment, as the message of the run says."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(embedded(scene.home))
    experiment = client.get_experiment_by_name(scene.name)
    if experiment and experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return True


@functools.cache
def clock_library() -> str:
    """The library of ``clock.c``."""
    library = Path(tempfile.mkdtemp(prefix="soak-clock-"), "clock.so")
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


def clock(how: str) -> Disturbance:
    return Disturbance(variables={"SOAK_CLOCK": how, "LD_PRELOAD": clock_library()})


KILL, TERM, INT, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP
BOTH = [("uploader", KILL), ("run", KILL)]


def kinds() -> dict[str, tuple[int, Disturbance]]:
    """{fault: (how many, what is done)}. Every run starts in a folder with a ``dpexp`` that is not ours."""
    return {
        "SIGKILL to the run": (5, Disturbance([("run", KILL)])),
        "SIGTERM to the run": (4, Disturbance([("run", TERM)])),
        "SIGINT to the run": (4, Disturbance([("run", INT)])),
        "SIGKILL to the uploader": (4, Disturbance([("uploader", KILL)])),
        "SIGKILL to both": (5, Disturbance(BOTH)),
        "SIGINT then SIGTERM": (4, Disturbance([("run", INT), ("run", TERM)], first=0.6)),
        "SIGKILL to a run without tracking": (3, Disturbance([("run", KILL)], first=0.3, words=OFF)),
        "SIGKILL to both, then to the fold": (3, Disturbance(BOTH, 0.5, 0.9, after=kill_fold)),
        "SIGKILL to a rank": (3, Disturbance([("rank", KILL)], first=0.3, words=DDP)),
        "SIGKILL to a rank of fsdp": (3, Disturbance([("rank", KILL)], 0.3, 0.9, FSDP)),
        "SIGKILL to a rank of torchrun hybrid": (3, Disturbance([("rank", KILL)], 0.3, 0.9, HYBRID)),
        "SIGTERM to torchrun of hybrid": (3, Disturbance([("run", TERM)], 0.3, 0.9, HYBRID)),
        "SIGKILL to the launcher and all ranks": (
            3,
            Disturbance([("all", KILL), ("run", KILL)], 0.3, 0.9, DDP),
        ),
        "SIGSTOP to a rank": (3, Disturbance([("rank", STOP)], 0.5, 0.9, DDP)),
        "SIGSTOP to a rank of fsdp": (3, Disturbance([("rank", STOP)], 0.5, 0.9, FSDP)),
        "run stopped for a while": (3, Disturbance([("run", STOP)], last=0.9, wakes_s=3.0)),
        "uploader stopped until the run has ended": (
            4,
            Disturbance([("uploader", STOP)], 0.3, 0.8, SOON, wakes_s=0.0),
        ),
        "working directory deleted": (4, Disturbance(last=0.9, deletes_folder=True)),
        "answers that drip": (3, Disturbance(words=SOON, store=dripping_server)),
        "database that is locked": (3, Disturbance(words=SOON, store=locked_database)),
        "artifacts that are read-only": (3, Disturbance(read_only=True)),
        "few file descriptors": (4, Disturbance(limit=(resource.RLIMIT_NOFILE, 12, 80))),
        "files that may not grow": (4, Disturbance(limit=(resource.RLIMIT_FSIZE, 1 << 11, 1 << 21))),
        "little memory": (4, Disturbance(limit=(resource.RLIMIT_AS, 1 << 30, 6 << 30))),
        "clock that runs backwards": (3, clock("backwards")),
        "clock before 1970": (3, clock("past")),
        "clock that jumps": (3, clock("jumps")),
        "sync, reap and check at once": (3, Disturbance([], 0.3, 0.9, meanwhile=read_at_once)),
        "reproduced without tracking": (3, Disturbance(words=OFF, after=reproduce)),
        "run renamed in MLflow while it runs": (
            3,
            _in_ui(lambda client, _, run: client.set_tag(run, "mlflow.runName", "renamed")),
        ),
        "run deleted in MLflow while it runs": (3, _in_ui(lambda client, _, run: client.delete_run(run))),
        "experiment renamed in MLflow while a run runs": (
            3,
            _in_ui(lambda client, one, _: client.rename_experiment(one, f"renamed {one}")),
        ),
        "experiment deleted in MLflow while a run runs, then restored": (
            3,
            _in_ui(lambda client, one, _: client.delete_experiment(one), after=restore_experiment),
        ),
        "SIGTERM, then resumed": (3, Disturbance([("run", TERM)], 0.4, 0.9, RESUMED, after=resume)),
        "SIGKILL, then resumed": (3, Disturbance([("run", KILL)], 0.4, 0.9, RESUMED, after=resume)),
        "SIGKILL, then resumed twice at once": (
            3,
            Disturbance([("run", KILL)], 0.6, 0.9, RESUMED, after=resume_twice_at_once),
        ),
        "bit flipped in the newest snapshot, then resumed": (
            4,
            Disturbance([("run", KILL)], 0.6, 0.9, RESUMED, after=resume_after(flip)),
        ),
        "newest snapshot cut, then resumed": (
            4,
            Disturbance([("run", KILL)], 0.6, 0.9, RESUMED, after=resume_after(cut_in_half)),
        ),
        "FIFO as the newest snapshot, then resumed": (
            4,
            Disturbance(
                [("run", KILL)],
                0.6,
                0.9,
                RESUMED,
                after=resume_after(lambda path, rng: make_pipe(path.name)(path.parent, rng)),
            ),
        ),
    }


def _in_ui(change: Callable[[MlflowClient, str, str], object], after: Action | None = None) -> Disturbance:
    """Something that MLflow's page does to a run and its experiment while the run runs."""
    return Disturbance([], 0.3, 0.6, in_experiment=True, meanwhile=in_mlflow(change), after=after)

"""A Slurm of one node, from Debian's packages, with everything in one folder and on free ports."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=main Nodes={host} Default=YES
"""


def is_installed() -> bool:
    return all(shutil.which(program, path=PLACES) for program in PROGRAMS)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """The environment variables with which Slurm's commands find it; it ends with the block."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, ports=free_ports(2), user=getpass.getuser(), folder=folder))
    environment = {"SLURM_CONF": str(conf), "PATH": PLACES}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    with contextlib.ExitStack() as daemons:
        daemons.enter_context(
            daemon(folder, ["munged", "-F", "--force", *munge, f"--key-file={folder}/munge.key"])
        )
        wait_for(lambda: (folder / "munge.socket").exists())
        daemons.enter_context(daemon(folder, ["slurmctld", "-D", "-c", "-f", str(conf)]))
        daemons.enter_context(daemon(folder, ["slurmd", "-D", "-c", "-f", str(conf)]))
        wait_for(lambda: "idle" in command(environment, "sinfo", "--noheader", "--format=%T"))
        try:
            yield environment
        finally:
            command(environment, "scancel", f"--user={getpass.getuser()}")
            wait_for(lambda: not command(environment, "squeue", "--noheader"))


@contextlib.contextmanager
def daemon(folder: Path, words: list[str]) -> Iterator[None]:
    program = shutil.which(words[0], path=PLACES)
    assert program is not None
    with open(folder / f"{words[0]}.log", "wb") as log:
        process = subprocess.Popen([program, *words[1:]], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def command(environment: dict[str, str], *words: str) -> str:
    """What a command of Slurm prints."""
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    return done.stdout


def wait_for(holds: object) -> None:
    while not holds():  # type: ignore[operator]
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]

"""A Slurm of one node, from Debian's packages, with everything in one folder and on free ports."""

import contextlib
import functools
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from servers import free_port

from dpexp.config.process import end_with_parent

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
    ports, user = (free_port(), free_port()), getpass.getuser()
    conf.write_text(CONF.format(host=host, ports=ports, user=user, folder=folder))
    environment = {"SLURM_CONF": str(conf), "PATH": PLACES}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    try:
        key = f"--key-file={folder}/munge.key"
        daemons["munged"] = start(folder, "munged", "-F", "--force", key, *munge)
        wait_for(lambda: (folder / "munge.socket").exists(), daemons, folder)
        for name in ("slurmctld", "slurmd"):
            daemons[name] = start(folder, name, "-D", "-c", "-f", str(conf))
        is_idle = ("sinfo", "--noheader", "--format=%T")
        wait_for(lambda: "idle" in command(environment, *is_idle), daemons, folder)
        yield environment
        command(environment, "scancel", f"--user={user}")
        wait_for(lambda: not command(environment, "squeue", "--noheader"), daemons, folder)
    finally:
        for process in reversed(daemons.values()):
            process.terminate()
            process.wait()


def start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    """A daemon that ends with this process."""
    program = shutil.which(name, path=PLACES)
    assert program is not None
    ends = functools.partial(end_with_parent, signal.SIGTERM)
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen([program, *words], stdout=log, stderr=log, preexec_fn=ends)


def wait_for(holds: Callable[[], bool], daemons: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Raises AssertionError with its log for a daemon that has ended."""
    while not holds():
        for name, process in daemons.items():
            assert process.poll() is None, (folder / f"{name}.log").read_text()
        time.sleep(0.1)


def command(environment: dict[str, str], *words: str) -> str:
    """What a command of Slurm prints; ``failed`` where it fails, as it may on a busy machine."""
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    return "failed" if done.returncode else done.stdout

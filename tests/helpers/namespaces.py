"""Hosts on one machine: network namespaces, joined by a pair of virtual Ethernet devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_lines import ENVIRONMENT, PATIENCE_S, ROOT, SERVER

IP = shutil.which("ip") or "/usr/sbin/ip"
NET = "10.213.7"


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``ip WORDS`` of iproute2."""
    return subprocess.run([IP, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=check)


def available() -> bool:
    """Whether this process may create network namespaces: it creates one and removes it."""
    if os.geteuid() != 0 or not Path(IP).exists() or shutil.which("unshare") is None:
        return False
    name = f"dpexp-try-{os.getpid()}"
    is_created = ip("netns", "add", name, check=False).returncode == 0
    pair = ("type", "veth", "peer", "name", "dpexp-try-b")
    has_pair = is_created and ip("-n", name, "link", "add", "dpexp-try-a", *pair, check=False).returncode == 0
    ip("netns", "del", name, check=False)
    return has_pair


class Host:
    """A network namespace with an address, a host name and a ``DPEXP_HOME`` of its own."""

    def __init__(self, name: str, number: int, home: Path) -> None:
        self.name, self.address, self.home = name, f"{NET}.{number}", home
        self.namespace, self.link = f"dpexp-{os.getpid()}-{name}", f"dpx{os.getpid() % 100000}{name}"
        home.mkdir(parents=True)
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")

    def connect(self) -> None:
        """Give the link its address and bring it up."""
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", self.link)
        ip("-n", self.namespace, "link", "set", self.link, "up")

    def cut(self) -> None:
        """Take the link down."""
        ip("-n", self.namespace, "link", "set", self.link, "down")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``python WORDS`` on this host, whose ranks are forked."""
        command = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0"; exec "$@"',
            self.name,
            sys.executable,
            str(SERVER),
        ]
        return subprocess.Popen(
            [IP, "netns", "exec", self.namespace, *command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | {"DPEXP_HOME": str(self.home)},
            cwd=ROOT,
        )


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Hosts ``a`` (the head) and ``b``, removed at the end with every process on them."""
    hosts: list[Host] = []
    try:
        for number, name in enumerate("ab", start=1):
            hosts.append(Host(name, number, folder / name))
        a, b = hosts
        ip(
            "-n",
            a.namespace,
            "link",
            "add",
            a.link,
            "type",
            "veth",
            "peer",
            "name",
            b.link,
            "netns",
            b.namespace,
        )
        for host in hosts:
            host.connect()
        yield a, b
    finally:
        for host in hosts:
            pids = ip("netns", "pids", host.namespace, check=False).stdout.split()
            for pid in pids:  # of this test: nothing else runs in this namespace
                subprocess.run(["kill", "-KILL", pid], check=False)
            ip("netns", "del", host.namespace, check=False)

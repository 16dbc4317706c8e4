"""Hosts on one machine: network namespaces, joined by a pair of virtual Ethernet devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launching import ENVIRONMENT, ROOT

IP = shutil.which("ip") or "/usr/sbin/ip"
NET = "10.213.7"


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """``ip WORDS`` of Debian's iproute2."""
    return subprocess.run([IP, *words], capture_output=True, text=True, timeout=20, check=check)


def available() -> bool:
    """Whether this process may make namespaces; it makes one and removes it."""
    if os.geteuid() != 0 or not Path(IP).exists() or shutil.which("unshare") is None:
        return False
    name = f"dpexp-try-{os.getpid()}"
    made = ip("netns", "add", name, check=False).returncode == 0
    pair = ("type", "veth", "peer", "name", "dpexp-try-b")
    joined = made and ip("-n", name, "link", "add", "dpexp-try-a", *pair, check=False).returncode == 0
    ip("netns", "del", name, check=False)
    return joined


class Host:
    """One namespace with an address, a host name and a ``DPEXP_HOME`` of its own."""

    def __init__(self, name: str, number: int, home: Path) -> None:
        self.name, self.address, self.home = name, f"{NET}.{number}", home
        self.space, self.link = f"dpexp-{os.getpid()}-{name}", f"dpx{os.getpid() % 100000}{name}"
        home.mkdir(parents=True)
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "set", "lo", "up")

    def connect(self) -> None:
        """Give the link its address."""
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", self.link)
        ip("-n", self.space, "link", "set", self.link, "up")

    def cut(self) -> None:
        """Take the link down."""
        ip("-n", self.space, "link", "set", self.link, "down")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``python WORDS`` on this host."""
        named = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$0"; exec "$@"',
            self.name,
            sys.executable,
            *words,
        ]
        return subprocess.Popen(
            [IP, "netns", "exec", self.space, *named],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | {"DPEXP_HOME": str(self.home)},
            cwd=ROOT,
        )


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Hosts ``a`` (the head) and ``b``, gone when it ends."""
    made: list[Host] = []
    try:
        for number, name in enumerate("ab", start=1):
            made.append(Host(name, number, folder / name))
        a, b = made
        ip("-n", a.space, "link", "add", a.link, "type", "veth", "peer", "name", b.link, "netns", b.space)
        for host in made:
            host.connect()
        yield a, b
    finally:
        for host in made:
            pids = ip("netns", "pids", host.space, check=False).stdout.split()
            for pid in pids:  # ours alone: nothing else runs in this namespace
                subprocess.run(["kill", "-KILL", pid], check=False)
            ip("netns", "del", host.space, check=False)

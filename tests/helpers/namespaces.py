"""Hosts on one machine: network namespaces, joined by a pair of virtual Ethernet devices."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_lines import PATIENCE_S, Command, CommandLines

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
    """A network namespace with an address, a host name and, in each test, a ``DPEXP_HOME`` of its own."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address, self.home = name, f"{NET}.{number}", Path()
        self.namespace, self.link = f"dpexp-{os.getpid()}-{name}", f"dpx{os.getpid() % 100000}{name}"
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name)
        self.lines = CommandLines((IP, "netns", "exec", self.namespace, *named))

    def connect(self) -> None:
        """Bring the link up."""
        ip("-n", self.namespace, "addr", "replace", f"{self.address}/24", "dev", self.link)
        ip("-n", self.namespace, "link", "set", self.link, "up")

    def cut(self) -> None:
        """Take the link down."""
        ip("-n", self.namespace, "link", "set", self.link, "down")

    def start(self, *words: str) -> Command:
        """``python WORDS`` on this host in a forked process, whose ranks are forked too."""
        return self.lines.start(*words, DPEXP_HOME=str(self.home))

    def end_commands(self) -> None:
        """Kill what was started here and still runs: nothing else runs in this namespace."""
        pids = ip("netns", "pids", self.namespace, check=False).stdout.split()
        for pid in set(pids) - {str(self.lines.process.pid)}:
            subprocess.run(["kill", "-KILL", pid], check=False)

    def remove(self) -> None:
        """End its processes, and remove the namespace with its end of the link."""
        self.end_commands()
        self.lines.close()
        ip("netns", "del", self.namespace, check=False)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Hosts ``a`` and ``b`` with a link, removed at the end with every process on them."""
    hosts: list[Host] = []
    try:
        for number, name in enumerate("ab", start=1):
            hosts.append(Host(name, number))
        a, b = hosts
        peer = ("type", "veth", "peer", "name", b.link, "netns", b.namespace)
        ip("-n", a.namespace, "link", "add", a.link, *peer)
        yield a, b
    finally:
        for host in hosts:
            host.remove()

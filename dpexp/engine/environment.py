"""Environment: what a run ran on, as far as it may change its result: versions, machine, code."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from dpexp.record import Row

_ROOT = Path(__file__).resolve().parents[2]
_LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;+]+)", re.MULTILINE)


def environment(accelerators: Sequence[Row], threads: int, capability: str) -> Row:
    """The ``environment`` of a Record.

    ``accelerators`` are ``{name, memory}`` (bytes); ``threads`` torch's, ``capability`` the CPU's
    vector instructions as torch uses them: both change the last bits of results.
    """
    packages = installed()
    return {
        "python": platform.python_version(),
        "torch": packages.get("torch"),
        "cuda": _cuda(),
        "mlflow": packages.get("mlflow"),
        "os": platform.platform(),
        "host": platform.node(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "cpu_capability": capability,
        "threads": threads,
        "accelerators": list(accelerators),
        "git": git(_ROOT),
        "argv": list(sys.argv),
        "packages": packages,
        "lock": lock(_ROOT / "requirements.lock", packages),
    }


def installed() -> dict[str, str]:
    """Name and version of every installed distribution."""
    facts = (item.metadata for item in metadata.distributions())  # each time it is asked for, a file is read
    found = {each["Name"]: each["Version"] for each in facts if each["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def lock(path: Path, packages: Mapping[str, str]) -> Row:
    """{sha256, differs} of the lock that the environment was made from.

    ``differs`` names the locked packages whose installed version (None: none) is another one; both are
    None where there is no lock. A build's label (``+cpu``) makes no difference.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return {"sha256": None, "differs": None}
    there = {_normal(name): version.partition("+")[0] for name, version in packages.items()}
    wanted = dict(_LOCKED.findall(content.decode()))
    differs = {name: there.get(_normal(name)) for name in wanted if there.get(_normal(name)) != wanted[name]}
    return {"sha256": hashlib.sha256(content).hexdigest(), "differs": differs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def cpu_name() -> str:
    """The processor's model, as Linux tells it; elsewhere what Python knows."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def git(root: Path) -> Row:
    """{commit, branch, dirty, diff_sha256} of the code; all None where it is no git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "branch": None, "dirty": None, "diff_sha256": None}
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD") or b""
    diff = _git(root, "diff", "--no-ext-diff", "--binary", "HEAD") or b""
    untracked = _untracked(root)
    dirty = bool(diff or untracked)
    return {
        "commit": commit.decode().strip(),
        "branch": branch.decode().strip(),
        "dirty": dirty,
        "diff_sha256": hashlib.sha256(diff + untracked).hexdigest() if dirty else None,
    }


def _untracked(root: Path) -> bytes:
    """Names and content hashes of the files that git does not track and does not ignore."""
    names = _git(root, "ls-files", "--others", "--exclude-standard") or b""
    return names + (_git(root, "hash-object", "--stdin-paths", given=names) or b"" if names else b"")


def _git(root: Path, *words: str, given: bytes = b"") -> bytes | None:
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cuda() -> str | None:
    torch = sys.modules.get("torch")
    return torch.version.cuda if torch is not None else None

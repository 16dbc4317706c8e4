"""Facts: versions, machine and code of a run, as far as they can change its result. Without torch.

A Record has them as ``environment``, with those of ``torch_facts``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from dpexp.config.process import ROOT, is_checkout
from dpexp.record.record import Row

_LOCKED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;+]+)", re.MULTILINE)

_NAME_OR_VERSION = re.compile(r"^(Name|Version): *(\S+)", re.MULTILINE)

ANY_OWNER = ("-c", "safe.directory=*")
"""Options of git that let it read a checkout of another user, as on a machine that several people use."""
NO_GIT: Row = dict.fromkeys(("commit", "branch", "dirty"))
"""``git`` of an environment whose dpexp is not a git checkout."""


def environment() -> Row:
    """The ``environment`` of a Record, but for what torch computes with."""
    found = (_header(distribution) for distribution in metadata.distributions())
    names = {entry["Name"]: entry.get("Version", "") for entry in found if "Name" in entry}
    packages = dict(sorted(names.items(), key=lambda item: item[0].lower()))
    return {
        "python": platform.python_version(),
        "torch": packages.get("torch"),
        "mlflow": packages.get("mlflow"),
        "os": platform.platform(),
        "host": platform.node(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "git": git(ROOT) if is_checkout() else NO_GIT,
        "argv": _argv(),
        "packages": packages,
        "lock": lock(ROOT / "requirements.lock", packages),
    }


def _argv() -> list[str]:
    """The command line; a program of dpexp's checkout by its path in it, not by where the checkout is."""
    program = [each.removeprefix(f"{ROOT}{os.sep}") for each in sys.argv[:1]]  # none where Python is embedded
    return [*program, *sys.argv[1:]]


def _header(distribution: metadata.Distribution) -> dict[str, str]:
    """Name and version of an installed package; ``Distribution.metadata`` parses all, ten times slower."""
    files = ("METADATA", "PKG-INFO", "")  # the last is a lone .egg-info file
    text = next(filter(None, map(distribution.read_text, files)), "")
    return dict(_NAME_OR_VERSION.findall(text.partition("\n\n")[0]))


def lock(path: Path, packages: Mapping[str, str]) -> Row:
    """{sha256, differs} of the lock file that the environment was made from; both None without one.

    ``differs`` has the installed version (None: not installed) of each locked package whose version differs.
    The label of a build (``+cpu``) is not compared.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return {"sha256": None, "differs": None}
    versions = {_normalized(name): version.partition("+")[0] for name, version in packages.items()}
    locked = _LOCKED.findall(content.decode())
    found = {name: (versions.get(_normalized(name)), version) for name, version in locked}
    differs = {name: version for name, (version, wanted) in found.items() if version != wanted}
    return {"sha256": hashlib.sha256(content).hexdigest(), "differs": differs}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def cpu_name() -> str:
    """The processor's model, from /proc/cpuinfo on Linux, else from Python."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:  # not Linux
        text = ""
    model = re.search(r"^model name\s*: *(.*\S)", text, re.MULTILINE)
    return model[1] if model is not None else platform.processor() or platform.machine()


def git(root: Path) -> Row:
    """{commit, branch, dirty} of the code; all None outside of a git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return dict(NO_GIT)
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD")
    return {"commit": commit, "branch": branch, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *ANY_OWNER, *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None

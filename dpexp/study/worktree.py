"""Worktree: the commit that a Record was made with, checked out for ``reproduce --exact``."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.config.process import ROOT, is_checkout
from dpexp.engine.facts import ANY_OWNER
from dpexp.record.record import Record


def commit_of(record: Record) -> str:
    """The recorded commit. Raises ConfigError for a Record without one."""
    commit = (record.environment.get("git") or {}).get("commit")
    if not commit:
        raise ConfigError("--exact: the record names no commit: it was not made from a git checkout")
    if not re.fullmatch(r"[0-9a-f]{40,64}", str(commit)):
        raise ConfigError(f"--exact: the record's commit {commit!r} is not a commit's hash")
    return str(commit)


def is_in_history(commit: str) -> bool:
    """Whether the code that runs now was made from this commit."""
    return _git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


@contextmanager
def worktree(record: Record) -> Iterator[Path]:
    """The recorded commit in a temporary worktree. Raises ConfigError if git does not have it."""
    if not is_checkout():
        raise ConfigError("--exact: this dpexp is an installed package; run it from a checkout")
    commit = commit_of(record)
    with tempfile.TemporaryDirectory(prefix="dpexp-") as folder:
        path = Path(folder) / "code"
        added = _git("worktree", "add", "--detach", str(path), commit)
        if added.returncode:
            reason = added.stderr.strip().rpartition("\n")[2] or "git is not installed"
            raise ConfigError(f"--exact: commit {commit} cannot be checked out: {reason}")
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *ANY_OWNER, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)

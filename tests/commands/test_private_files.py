"""Who can read what dpexp makes in DPEXP_HOME: its owner alone."""

import subprocess
from pathlib import Path

import journals
from command_lines import PATIENCE_S, ROOT, python

from dpexp.record.journal import JOURNAL
from dpexp.record.record import finish

SHORT = ("--steps", "3", "--warmup", "0", "--no-check")
UNDER_UMASK = """
import os, runpy, sys
os.umask(int(sys.argv[1]))
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def script(umask: int, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    name, *arguments = words
    done = python("-c", UNDER_UMASK, umask, ROOT / "scripts" / str(name), *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done


def modes(home: Path) -> dict[str, str]:
    """The mode of everything in the home."""
    return {str(path.relative_to(home)): f"{path.lstat().st_mode & 0o7777:04o}" for path in home.rglob("*")}


def test_a_home_is_for_its_owner_alone_whatever_the_umask(dpexp_home: Path, tmp_path: Path) -> None:
    script(0, "run.py", "hybrid", "--virtual", "1", "--steps", "3", "--quiet", "--track-timeout", PATIENCE_S)
    script(0, "sweep.py", "single", "--devices", "cpu", *SHORT, "--phase-steps", "1", "--repeat", "1")
    script(0, "run.py", "whole", *SHORT, "--quiet", "--no-track")
    journals.complete(tmp_path / "elsewhere", "imported")
    script(0, "runs.py", "sync", "last", tmp_path / "elsewhere/imported", tmp_path / "elsewhere")
    found = modes(dpexp_home)
    assert len(found) > 50
    assert {"mlflow.db", "mlruns", "runs", "runs/imported/journal.jsonl"} <= found.keys()
    for name in ("report/report.md", "artifacts/report/report.md"):
        assert [path for path in found if path.endswith(name)], name
    folders = {name for name in found if (dpexp_home / name).is_dir()}
    assert {found[name] for name in folders} == {"0700"}, found
    assert {found[name] for name in found.keys() - folders} == {"0600"}, found


def test_files_that_the_user_names_have_the_modes_of_the_users_umask(
    dpexp_home: Path, tmp_path: Path
) -> None:
    journals.complete(dpexp_home / "runs", "one")
    finish(dpexp_home / "runs" / "one" / JOURNAL)
    script(0o027, "report.py", "one", "--out", tmp_path / "out")
    assert set(modes(tmp_path / "out").values()) == {"0640"}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750

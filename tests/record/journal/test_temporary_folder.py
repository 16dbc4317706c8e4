"""Folders in the temporary directory: none stays of a process that was killed, and none in use is removed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import ROOT, script

from dpexp.record.journal.temporary_folder import remove_dead_folders, temporary_folder

KILLED = """
import os, signal
from dpexp.record.journal.temporary_folder import temporary_folder
with temporary_folder("figures") as folder:
    (folder / "timeline.png").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, with what a killed process has left in it."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(path))
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = path.iterdir()
    assert [each.name for each in left.iterdir()] == ["timeline.png"]
    return path


def test_reap_removes_what_a_killed_process_left(folder: Path) -> None:
    assert script("runs.py", "reap").returncode == 0
    assert list(folder.glob("dpexp-*")) == []


def test_the_next_process_removes_it_and_leaves_nothing_either(folder: Path) -> None:
    with temporary_folder("ranks") as own:
        assert list(folder.iterdir()) == [own]
        assert own.stat().st_mode & 0o777 == 0o700
        remove_dead_folders()
        assert own.is_dir(), "it is in use"
    assert list(folder.iterdir()) == []


def test_what_others_have_made_stays(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    names = ("dpexp-ranks-abcdefgh", "dpexp-postgres-abcdefgh", "other.held")
    for name in names:
        (folder / name).mkdir()
    (folder / "dpexp-ranks-link.held").symlink_to(tmp_path / "mine")
    (folder / "dpexp-ranks-file.held").touch()
    remove_dead_folders()
    left = {*names, "dpexp-ranks-link.held", "dpexp-ranks-file.held"}
    assert {each.name for each in folder.iterdir()} == left
    assert (tmp_path / "mine").is_dir()

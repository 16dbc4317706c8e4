"""Folders in the temporary directory: none stays of a process that was killed, and none in use is removed."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import journals
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


NO_LOCKS = """
import errno, fcntl, os
def flock(file, operation):
    raise OSError(errno.{error}, os.strerror(errno.{error}))
fcntl.flock = flock
"""


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_where_the_file_system_has_no_locks_the_process_in_its_name_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def flock(*ignored: object) -> None:
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

    (locked,) = folder.iterdir()
    monkeypatch.setattr("fcntl.flock", flock)
    with temporary_folder("ranks") as own:
        killed = subprocess.run(
            [sys.executable, "-c", NO_LOCKS.format(error=error) + KILLED], cwd=ROOT, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        (dead,) = set(folder.iterdir()) - {own}
        elsewhere = dead.with_name(re.sub("_[0-9a-f]{8}_", "_00000000_", dead.name))
        elsewhere.mkdir()
        remove_dead_folders()
        assert set(folder.iterdir()) == {own, elsewhere}, "a process of another machine may live"
    assert list(folder.iterdir()) == [elsewhere]
    assert not locked.exists()


KILLED_IMPORT = """
import os, shutil, signal, sys
from pathlib import Path
from dpexp.record.runs.import_journals import import_journal
shutil.copyfile = lambda *ignored: os.kill(os.getpid(), signal.SIGKILL)
import_journal(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_reap_removes_what_a_killed_import_left(dpexp_home: Path, tmp_path: Path) -> None:
    journal, runs = journals.complete(tmp_path / "abroad", "abroad"), dpexp_home / "runs"
    killed = subprocess.run([sys.executable, "-c", KILLED_IMPORT, journal, runs], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [[each.name for each in left.iterdir()] for left in runs.iterdir()] == [["abroad"]]
    with temporary_folder("import", runs) as own:
        assert script("runs.py", "reap").returncode == 0
        assert list(runs.iterdir()) == [own], "it is in use"
    assert list(runs.iterdir()) == []

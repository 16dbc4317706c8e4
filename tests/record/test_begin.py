"""A run that cannot begin, as on a full disk, leaves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import ROOT

LIMITED = """
import resource, sys
from pathlib import Path
from dpexp.record.files import JournalError
from dpexp.record.runs import begin
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
try:
    begin(Path(sys.argv[1]), "", {"config": {"text": "x" * 80_000}}, restarted=False)
except JournalError as error:
    print(error)
"""


@pytest.mark.parametrize("made", [True, False], ids=["runs", "no runs yet"])
def test_a_run_that_cannot_begin_leaves_no_folder(dpexp_home: Path, made: bool) -> None:
    """A limit on the size of files, as a full disk, lets small ones be written."""
    home = dpexp_home if made else dpexp_home / "new"
    other = home / "runs" / "other"
    stray = home / "runs" / "journal.jsonl"
    if made:
        other.mkdir(parents=True)
        stray.touch()
    command = [sys.executable, "-c", LIMITED, str(home), "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "File too large" in done.stdout, done.stderr
    assert set(home.rglob("*")) == ({home / "runs", other, stray} if made else set())


def test_a_run_that_cannot_begin_leaves_a_folder_of_runs_that_it_did_not_make(dpexp_home: Path) -> None:
    (dpexp_home / "runs").mkdir(0o770)
    command = [sys.executable, "-c", LIMITED, str(dpexp_home), "1000"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert [*(dpexp_home / "runs").iterdir()] == []

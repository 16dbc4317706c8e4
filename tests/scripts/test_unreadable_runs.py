"""A run of another user in a shared home: it is named, and blocks no other run."""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import journals
import pytest
from command_lines import ROOT

from dpexp.record.journal.fold import finish
from dpexp.record.journal.journal import JOURNAL

WITHOUT_PRIVILEGES = """
import ctypes, os, sys
if os.getuid() == 0:  # root reads everything: leave out the capabilities by which it does
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


UNREACHABLE = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}


def script(
    name: str, *words: str, variables: Mapping[str, str] = UNREACHABLE
) -> subprocess.CompletedProcess[str]:
    """Run a script as a user whom the modes of files bind."""
    command = [sys.executable, "-c", WITHOUT_PRIVILEGES, str(ROOT / "scripts" / name), *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.fixture
def closed(dpexp_home: Path) -> Generator[Path]:
    """The folder of a run that nobody may look into, beside that of a run named ``whole``."""
    runs = dpexp_home / "runs"
    finish(journals.complete(runs, "whole"))
    finish(journals.complete(runs, "other"))
    (runs / "other").chmod(0)
    yield runs / "other"
    (runs / "other").chmod(0o700)


@pytest.mark.parametrize("command", ["list", "reap", "sync", "report"])
def test_a_run_of_another_user_is_named_and_skipped(closed: Path, command: str) -> None:
    done = script("report.py") if command == "report" else script("runs.py", command)
    assert "Traceback" not in done.stderr
    skipped = f"warning: run other is skipped: {closed / JOURNAL} cannot be read: Permission denied\n"
    assert done.stderr.count("warning: ") == done.stderr.count(skipped) == 1
    reached = {"list": "whole", "report": "Comparison 1: 1 config", "reap": "", "sync": "connection refused"}[
        command
    ]
    assert reached in done.stdout + done.stderr
    assert done.returncode == (3 if command == "sync" else 0)  # the store is away


def test_a_run_of_another_user_that_is_named_is_an_error(closed: Path) -> None:
    shown = script("runs.py", "show", "other")
    assert shown.returncode == 2
    assert shown.stderr == f"error: {closed / JOURNAL} cannot be read: Permission denied\n"
    assert script("runs.py", "show", "whole").returncode == 0


def test_check_reports_a_run_of_another_user_once(closed: Path) -> None:
    checked = script("runs.py", "check")
    assert checked.returncode == 1
    assert "2 runs checked, 1 problem" in checked.stdout
    assert "other  journal: journal.jsonl: Permission denied; cannot be repaired" in checked.stdout


@pytest.mark.parametrize("command", ["list", "reap", "sync", "check", "report"])
def test_a_home_of_another_user_is_named_in_one_line(closed: Path, command: str) -> None:
    runs = closed.parent
    runs.chmod(0)
    done = script("report.py") if command == "report" else script("runs.py", command)
    runs.chmod(0o700)
    assert done.returncode == 2
    message = f"error: {runs} cannot be read: Permission denied; DPEXP_HOME is the folder of the runs\n"
    assert (done.stdout, done.stderr) == ("", message)


def test_a_sweep_in_a_home_of_another_user_is_refused_in_one_line(closed: Path) -> None:
    runs = closed.parent
    runs.chmod(0)
    done = script("sweep.py", "single", "--repeat", "1", "--steps", "1")
    runs.chmod(0o700)
    assert done.returncode == 2
    message = (
        f"error: cannot write a journal at {runs}: Permission denied; DPEXP_HOME is the folder of the runs"
    )
    assert done.stderr.splitlines()[-1] == message


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")
def test_what_another_user_of_a_shared_home_has_delivered_is_delivered_again(home_with_store: Path) -> None:
    shared, nobody = {"DPEXP_SHARED": "1"}, 65534
    finish(journals.complete(home_with_store / "runs", "whole"))
    before = os.umask(0)
    try:
        assert script("runs.py", "sync", variables=shared).returncode == 0
        for path in home_with_store.rglob("*"):
            os.chown(path, nobody, nobody)
            path.chmod(0o777 if path.is_dir() else 0o666)
        again = script("runs.py", "sync", "--again", "whole", variables=shared)
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("whole  delivered: ")
        assert script("runs.py", "check", "--store", variables=shared).returncode == 0
    finally:
        os.umask(before)

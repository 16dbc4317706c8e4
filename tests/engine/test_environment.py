"""The environment of a Record: what is installed, as the installed packages say."""

import subprocess
from pathlib import Path

import pytest
from helpers import needs

from dpexp.config.process import ROOT
from dpexp.engine.facts import environment, git


@pytest.mark.parametrize(
    ("program", "recorded"),
    [
        (ROOT / "scripts/run.py", "scripts/run.py"),
        (Path("scripts/run.py"), "scripts/run.py"),
        (Path("/elsewhere/x.py"), "/elsewhere/x.py"),
    ],
)
def test_a_program_of_the_checkout_is_named_by_its_path_in_it(
    program: Path, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [str(program), "whole", "--steps", "3"])
    assert environment()["argv"] == [recorded, "whole", "--steps", "3"]


@needs.checkout
def test_the_checkout_of_another_user_has_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(ROOT)["commit"]
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "-C", str(ROOT), "status"], capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    assert git(ROOT)["commit"] == commit

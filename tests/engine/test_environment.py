"""The environment of a Record: what is installed, as the installed packages say."""

import subprocess

import pytest
from helpers import needs

from dpexp.config.process import ROOT
from dpexp.engine.facts import git


@needs.checkout
def test_the_checkout_of_another_user_has_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = git(ROOT)["commit"]
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "-C", str(ROOT), "status"], capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    assert git(ROOT)["commit"] == commit

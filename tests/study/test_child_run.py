"""A child run that is refused, and the dpexp that it runs."""

from pathlib import Path

import pytest

from dpexp.study.child_run import run_in_child


def test_a_refused_config_gives_its_reason_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dpexp.py").write_text("raise ImportError('another dpexp')")
    monkeypatch.chdir(tmp_path)
    child = run_in_child({"strategy": "hole"}, {})
    assert child.record is None
    assert "did you mean 'whole'" in child.error

"""A child run: its Record, its error message, and the dpexp that it runs."""

from pathlib import Path

import pytest

from dpexp.config.run_config import RunConfig
from dpexp.study.child_run import run_in_child

FAILS_LATER = """
import torch

class Fails(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        Fails.calls += 1
        if Fails.calls > 30:
            raise RuntimeError("the model broke")
        return super().forward(x)

    def example(self, rows, generator):
        return torch.randn(rows, 5, generator=generator), torch.randn(rows, 2, generator=generator)

def fails():
    return Fails(5, 2)
"""


def test_a_refused_config_gives_its_reason_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dpexp.py").write_text("raise ImportError('another dpexp')")
    monkeypatch.chdir(tmp_path)
    child = run_in_child({"strategy": "hole"}, {})
    assert child.record is None
    assert "did you mean 'whole'" in child.error


@pytest.mark.usefixtures("forked_child_runs")
def test_a_failed_run_gives_its_record_and_its_message(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(FAILS_LATER)
    config = RunConfig("single", model=f"{path}:fails", devices="cpu", steps=100, check=False, track=False)
    child = run_in_child(config.to_dict(), {})
    assert child.record is not None
    assert child.record.status == "failed"
    assert "the model broke" in child.error

"""``.ci/gpu``: what an owner of an accelerator runs works on emulated devices, where it can be tested."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

from command_lines import ROOT

from dpexp.record.journal.fold import load


def test_it_runs_every_strategy_and_leaves_journals_and_records(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", ".ci/gpu", str(tmp_path / "out"), "--virtual", "--only", "strategies"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert (tmp_path / "out" / "results.txt").read_text() == done.stdout
    records = [load(folder) for folder in (tmp_path / "out" / "runs").iterdir()]
    assert len(records) == done.stdout.count("  ok  ")
    ran = {record.strategy for record in records}
    assert ran == {"single", "whole", "block", "functional", "hybrid", "place", "custom"}


def test_without_an_accelerator_it_says_how_to_check_it(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    command = ["bash", ".ci/gpu", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no CUDA device: --virtual checks the check" in done.stderr


MISSING = ("hypothesis", "matplotlib", "mlflow", "psutil", "sqlalchemy", "yaml", "xdist")
COLLECT = f"""
import sys
sys.modules.update(dict.fromkeys({MISSING}))
import pytest
sys.exit(pytest.main(["-o", "addopts=", "-q", "--collect-only", "-m", "gpu", *sys.argv[1:]]))
"""


def test_the_tests_of_accelerators_need_only_torch_and_pytest() -> None:
    files = runpy.run_path(str(ROOT / ".ci" / "accelerator.py"))["TESTS"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-c", COLLECT, *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(files) >= 6
    assert {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line} == set(files)

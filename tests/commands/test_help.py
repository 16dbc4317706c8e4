"""The help of a script is there at once: it imports no library that takes seconds."""

import subprocess
import sys

import pytest
from command_lines import ROOT

HEAVY = {"torch", "mlflow", "matplotlib", "pandas"}
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_imports_no_heavy_library(script: str) -> None:
    command = [sys.executable, "-X", "importtime", f"scripts/{script}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & HEAVY

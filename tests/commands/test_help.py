"""The help of a script, and a list of runs, is there at once: it imports no library that takes seconds."""

import subprocess
import sys

import pytest
from command_lines import ROOT

HEAVY = {"torch", "mlflow", "matplotlib", "pandas"}
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))


@pytest.mark.parametrize("words", [*((script, "--help") for script in SCRIPTS), ("runs.py", "list")])
@pytest.mark.usefixtures("dpexp_home")
def test_help_and_lists_import_no_heavy_library(words: tuple[str, str]) -> None:
    command = [sys.executable, "-X", "importtime", f"scripts/{words[0]}", words[1]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & HEAVY

"""The help of a script, and a list of runs, is there at once: it imports no library that takes seconds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_lines import ROOT, script

CODE = """
import sys
sys.path[:0] = ["tests", "."]
import dpexp
from helpers.command_lines import script
for name in sys.argv[1:]:
    assert "Usage" in script(name, "--help").stdout, name
assert script("runs.py", "list").returncode == 0
assert "typer" in sys.modules
heavy = {"torch", "mlflow", "matplotlib", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_and_lists_import_no_heavy_library(dpexp_home: Path) -> None:
    scripts = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
    assert len(scripts) > 4
    subprocess.run([sys.executable, "-c", CODE, *scripts], cwd=ROOT, check=True)


@pytest.mark.parametrize("option", ["--model", "--data", "--loss", "--metrics", "--optimizer"])
def test_the_help_says_how_to_name_what_a_user_has_written(option: str) -> None:
    shown = " ".join(re.sub("[│╭╰─╮╯]", " ", script("run.py", "ddp", "--help", COLUMNS="100").stdout).split())
    _, _, after = shown.partition(f" {option} ")
    assert "FILE.py:NAME or package.module:NAME" in after.partition("[env var: ")[0]

"""The help of a script, and a list of runs, is there at once: it imports no library that takes seconds."""

import subprocess
import sys
from pathlib import Path

from helpers.command_lines import ROOT

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

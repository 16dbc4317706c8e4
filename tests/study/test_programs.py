"""Cells that are programs: ``experiments/programs.py`` runs them, and dpexp only judges their Records."""

import re
from pathlib import Path

from helpers.command_lines import ROOT, python, script

from dpexp.study.experiment import load_experiment
from dpexp.study.records import read_runs

CONFIG = """
from dpexp.study.experiment import Bars, Claim
QUESTION, RUNS = "Which is faster?", {}
PROGRAMS = {"quick": ("program.py", "1"), "slow": ("program.py", "9")}
CLAIMS = [Claim("It is slower.", "step_ms", "slow", ">", 5.0, "quick")]
ANSWER, COLUMNS = "It takes {ratio step_ms slow quick}.", ("step_ms",)
FIGURE, REPEATS = Bars("", "step_ms", {"quick": "quick", "slow": "slow"}), 2
"""
PROGRAM = """
import os, sys
sys.path.insert(0, %r)
from experiments.programs import program_record
ms = float(sys.argv[1])
print(program_record(sys.argv[1], [ms, 1.1 * ms], 30, {"process_s": [ms]}).to_json())
"""


def test_programs_are_run_in_rounds_and_their_records_are_judged(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG)
    (folder / "program.py").write_text(PROGRAM % str(ROOT))
    done = python(ROOT / "experiments" / "programs.py", folder)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\w+\.r\d$", done.stderr, re.MULTILINE) == [
        "quick.r1",
        "slow.r1",
        "slow.r2",
        "quick.r2",
    ]
    records = read_runs(load_experiment(folder).records / "cpu")
    assert {record.experiment for record in records.values()} == {"programs"}
    assert script("report.py", folder).returncode == 0
    assert script("report.py", folder, "--check").returncode == 0
    assert "| It is slower. | holds | 9.00x" in (folder / "results.md").read_text()
    swept = script("sweep.py", folder)
    assert (swept.returncode, "no cell is a run of dpexp" in swept.stderr) == (2, True)

"""The public names of dpexp, as Python, a type checker and a reader of what they return see them."""

import os
import subprocess
import sys
from pathlib import Path

from command_lines import ROOT

import dpexp

PUBLIC = ["MODELS", "Record", "RunConfig", "STRATEGIES", "prove", "run", "watch"]
USER = """
import dpexp

record = dpexp.run("whole", virtual=2, steps=5)
step_ms: float = record.summary["step_ms"]["median"]
config: dpexp.RunConfig = dpexp.RunConfig("single", steps=3)
names: list[str] = [*dpexp.STRATEGIES, *dpexp.MODELS]
"""
WRONG = """
dpexp.runs()
dpexp.Record().sumary
dpexp.RunConfig("single", step=3)
"""


def test_dir_lists_the_public_names_and_only_them() -> None:
    assert dir(dpexp) == sorted(dpexp.__all__) == PUBLIC
    assert all(hasattr(dpexp, name) for name in PUBLIC)


def test_a_type_checker_sees_these_names_and_what_they_return(tmp_path: Path) -> None:
    """Without torch's own types, which take most of its time."""
    (tmp_path / "user.py").write_text(USER + WRONG)
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\n[mypy-torch.*]\nfollow_imports = skip\n"
    )
    words = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache"), "user.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    first = USER.count("\n") + 2
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [int(line.split(":")[1]) for line in errors] == [first, first + 1, first + 2], done.stdout
    for line, name in zip(errors, ("runs", "sumary", "step"), strict=True):
        assert f'"{name}"' in line


def test_a_record_prints_as_its_summary_and_stands_in_a_line_where_python_shows_it(dpexp_home: Path) -> None:
    record = dpexp.run("single", devices="cpu", steps=2, warmup=0, phase_steps=1, track=False, quiet=True)
    printed = str(record)
    assert printed.startswith(f"Run single-linear-cpu ({record.run_id})\n")
    assert "Where a step goes" in printed
    assert len(printed) < 5000
    shown = f"(run_id='{record.run_id}', name='single-linear-cpu', status='finished')"
    assert repr(record) == f"RunRecord{shown}"
    assert str(dpexp.Record.from_dict(record.to_dict())) == f"Record{shown}"

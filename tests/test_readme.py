"""README's commands work as printed."""

import json
from itertools import chain
from pathlib import Path

import pytest
from helpers.command_lines import script
from helpers.printed import blocks


def test_every_script_that_readme_calls_works(dpexp_home: Path) -> None:
    printed = chain.from_iterable(block.commands() for block in blocks("README.md"))
    scripts = [words for words in printed if words[0] == "python" and words[1].startswith("scripts/")]
    assert len(scripts) == 4
    for _, path, *words in scripts:
        done = script(Path(path).name, *words, DPEXP_TRACK="0")
        assert done.returncode == 0, f"{path} {words}\n{done.stdout}\n{done.stderr}"
    assert scripts[-1][1] == "scripts/report.py"
    assert "Comparison 1: 2 configs" in done.stdout, "it has something to compare"
    records = [json.loads(path.read_text()) for path in dpexp_home.glob("runs/*/record.json")]
    assert records
    assert all(record["verification"]["passed"] for record in records)


def test_the_model_of_one_s_own_runs_as_readme_has_it(
    dpexp_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (block.text for block in blocks("README.md") if "import dpexp" in block.text)
    exec(program.replace("virtual=2", "virtual=2, track=False"), {})
    assert "verified" in capsys.readouterr().out

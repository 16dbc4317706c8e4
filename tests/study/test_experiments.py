"""The committed experiments: their READMEs match their Records, and the check finds what does not match."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from command_lines import ROOT, script

from dpexp.config.errors import ConfigError
from dpexp.study.experiment import load_experiment
from dpexp.study.readme import ExperimentReadme, records_of

EXPERIMENTS = ROOT / "experiments"
NAMES = sorted(path.parent.name for path in EXPERIMENTS.glob("*/config.py"))
SECTIONS = ["Prediction", "Results", "Why", "Set-up", "Reproduce", "Limits"]


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    return script("report.py", *arguments)


def test_every_experiment_matches_its_records() -> None:
    done = report("--check")
    assert done.returncode == 0, done.stderr
    assert len(NAMES) >= 1
    assert done.stdout.splitlines() == [f"{name}: agrees with its Records" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_is_a_lesson(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / name)
    text = (experiment.folder / "README.md").read_text()
    assert text.startswith(f"# {experiment.question}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    if experiment.runs:
        assert f"python scripts/sweep.py experiments/{name}" in text
    if experiment.programs:
        assert f"python experiments/programs.py experiments/{name}" in text
    assert (experiment.folder / "config.py").read_text().startswith(f'"""{experiment.question}')


@pytest.mark.parametrize("name", NAMES)
def test_every_record_names_its_lock_and_its_commit(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / name)
    records = [record for runs in ExperimentReadme(experiment).runs.values() for record in records_of(runs)]
    assert len(records) >= len(experiment.cells) > 0
    for record in records:
        assert record.environment["lock"]["sha256"]
        assert record.environment["git"]["commit"]
        assert record.environment["git"]["dirty"] is False
        assert record.damage == []


def test_the_index_names_every_experiment() -> None:
    text = (EXPERIMENTS / "README.md").read_text()
    folders = {page.parent.name for page in EXPERIMENTS.glob("*/README.md")}
    assert set(re.findall(r"\]\((\w+)/\)", text)) == folders > set(NAMES)


# --- what the check finds -------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of a committed experiment with the same name."""
    folder = tmp_path / "seed_tables"
    shutil.copytree(EXPERIMENTS / "seed_tables", folder)
    return folder


def problems(folder: Path) -> str:
    return "\n".join(ExperimentReadme(load_experiment(folder)).problems())


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_untouched_copy_has_no_problems(copied: Path) -> None:
    assert problems(copied) == ""


def test_an_edited_answer_is_found(copied: Path) -> None:
    changed(copied / "README.md", "7 × 4 + 2", "8 × 4")
    assert "README.md is not what its Records give" in problems(copied)


def test_a_missing_run_is_found(copied: Path) -> None:
    path = copied / "records" / "cpu" / "runs.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"cell": "whole-8", "round": 2' not in line))
    assert "cell 'whole-8' has rounds [1, 3]" in problems(copied)


def test_a_contradicted_claim_is_found(copied: Path) -> None:
    changed(copied / "config.py", '"15 + 15; 5 + 5"', '"16 + 14; 5 + 5"')
    found = problems(copied)
    assert "contradicted on cpu, not holds: 15 + 15; 5 + 5" in found
    ExperimentReadme(load_experiment(copied)).write()
    assert "**Not answered:**" in (copied / "README.md").read_text()


def test_a_config_that_differs_from_the_records_is_found(copied: Path) -> None:
    changed(copied / "config.py", "steps=40, warmup=4", "steps=41, warmup=4")
    assert "was made with another config: steps" in problems(copied)


def test_an_old_picture_is_found_and_a_new_one_carries_its_digest(copied: Path) -> None:
    config, picture = copied / "config.py", copied / "figure.png"
    drawn = (
        "from dpexp.study.figure_kinds import Bars\nFIGURE = Bars('Steps', 'steps', {'whole-8': '8 devices'})"
    )
    config.write_text(f"{config.read_text()}\n{drawn}\n")
    assert "figure.png is not drawn from the Records" in problems(copied)
    ExperimentReadme(load_experiment(copied)).write()
    assert problems(copied) == ""
    before = picture.read_bytes()
    changed(config, "'8 devices'", "'eight devices'")
    assert "figure.png is not drawn from the Records" in problems(copied)
    ExperimentReadme(load_experiment(copied)).write()
    assert picture.read_bytes() != before
    assert problems(copied) == ""


def test_missing_parts_of_an_experiment_are_named(copied: Path) -> None:
    path = copied / "config.py"
    path.write_text(path.read_text().replace("ANSWER =", "REPLY ="))
    with pytest.raises(ConfigError, match="it must define ANSWER"):
        load_experiment(copied)
    with pytest.raises(ConfigError, match="did you mean 'seed_tables'"):
        load_experiment(copied.parent / "seedtables")


@pytest.mark.parametrize("repeats", ["0", "2.5", "True"])
def test_repeats_that_cannot_be_run_are_refused(copied: Path, repeats: str) -> None:
    path = copied / "config.py"
    path.write_text(f"{path.read_text()}\nREPEATS = {repeats}\n")
    with pytest.raises(ConfigError, match=r"REPEATS is .*: give a whole number from 1"):
        load_experiment(copied)

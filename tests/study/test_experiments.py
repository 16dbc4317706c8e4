"""The committed experiments match their Records, and the check finds what does not match."""

import re
from pathlib import Path

import pytest
from helpers.command_lines import ROOT, script
from helpers.record_factory import whole

from dpexp.config.errors import ConfigError
from dpexp.study.experiment import load_experiment
from dpexp.study.records import ROWS, read_runs, write_runs
from dpexp.study.results import Results

EXPERIMENTS = ROOT / "experiments"
NAMES = sorted(path.parent.name for path in EXPERIMENTS.glob("*/config.py"))
SECTIONS = ["Prediction", "Why", "Set-up", "Reproduce", "Limits"]


def test_every_experiment_matches_its_records() -> None:
    done = script("report.py", "--check")
    assert done.returncode == 0, done.stderr
    assert len(NAMES) >= 9
    assert done.stdout.splitlines() == [f"{name}: agrees with its Records" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_readme_is_a_lesson_that_begins_with_the_answer(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / name)
    text = (experiment.folder / "README.md").read_text()
    assert re.match(rf"# {re.escape(experiment.question)}\n\n\*\*[^*]+\d[^*]+\*\*", text), "a number answers"
    assert "[All results](results.md)" in text.partition("\n## ")[0]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    program = "scripts/sweep.py" if experiment.runs else "experiments/programs.py"
    assert f"python {program} experiments/{name}" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_record_names_its_lock_and_its_commit(name: str) -> None:
    experiment = load_experiment(EXPERIMENTS / name)
    records = [run for folder in experiment.records.iterdir() for run in read_runs(folder).values()]
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

CONFIG = """
from dpexp.config.run_config import RunConfig
from dpexp.study.experiment import Bars, Claim
QUESTION, REPEATS = "How do rows fall?", 2
RUNS = {"single": RunConfig("single", steps=10), "two": RunConfig("whole", virtual=2, steps=10)}
CLAIMS = [Claim("Two get halves.", "split", "two", "==", "15 + 15; 5 + 5")]
ANSWER, COLUMNS = "Two get {value split two}.", ("split",)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An experiment with results; its Records have the config of its cells."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG)
    runs = load_experiment(folder).runs
    records = {cell: [whole(number) for _ in "12"] for number, cell in enumerate(runs, start=1)}
    for cell, config in runs.items():
        for record in records[cell]:
            record.config = config.to_dict()
    write_runs(folder / "records" / "cpu", records)
    Results(load_experiment(folder)).write()
    return folder


def problems(folder: Path) -> str:
    return "\n".join(Results(load_experiment(folder)).problems())


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_results_have_the_answer_the_cells_and_the_verdicts(small: Path) -> None:
    text = (small / "results.md").read_text()
    assert "**Two get 15 + 15; 5 + 5.**" in text
    assert "| two | 2 | 15 + 15; 5 + 5 |" in text
    assert "| Two get halves. | holds |" in text
    assert problems(small) == ""


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("results.md", "15 + 15", "16 + 14", "results.md is not what the Records give"),
        (
            f"records/cpu/{ROWS}",
            'two", "round": 2',
            'two", "round": 3',
            "'two' has rounds [1, 3], not 1 to 2",
        ),
        ("config.py", '"15 + 15; 5 + 5"', '"16 + 14; 5 + 5"', "contradicted on cpu, not holds: 15 + 15; 5"),
        ("config.py", "virtual=2, steps=10", "virtual=2, steps=11", "made with another config: steps"),
    ],
)
def test_what_was_edited_is_found(small: Path, name: str, old: str, new: str, problem: str) -> None:
    changed(small / name, old, new)
    assert problem in problems(small)


def test_an_old_picture_is_found_and_a_new_one_carries_its_digest(small: Path) -> None:
    config, picture = small / "config.py", small / "figure.png"
    config.write_text(f"{config.read_text()}\nFIGURE = Bars('Eight', 'rows', {{'two': 'two'}})\n")
    assert "figure.png is not drawn from the Records" in problems(small)
    Results(load_experiment(small)).write()
    assert problems(small) == ""
    before = picture.read_bytes()
    changed(config, "Eight", "Nine")
    assert "figure.png is not drawn from the Records" in problems(small)
    Results(load_experiment(small)).write()
    assert picture.read_bytes() != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("REPEATS = True", "REPEATS is True: give a whole number from 1"),
        ("RUNS = {'a/b c': RUNS['single']}", "cell 'a/b c': use only letters, digits, - and _"),
        ("del RUNS['single']; CLAIMS = []", "no cell has strategy single, the reference"),
    ],
)
def test_what_a_sweep_would_find_too_late_is_refused(small: Path, line: str, message: str) -> None:
    path = small / "config.py"
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        load_experiment(small)


def test_missing_parts_of_an_experiment_are_named(small: Path) -> None:
    changed(small / "config.py", "ANSWER,", "REPLY,")
    with pytest.raises(ConfigError, match="it must define ANSWER"):
        load_experiment(small)
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        load_experiment(small.parent / "smal")

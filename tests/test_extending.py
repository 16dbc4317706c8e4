"""docs/extending.md: each of its examples is added to a copy of dpexp, and works there."""

import csv
import json
import re
import shutil
from pathlib import Path

import launching
import pytest
from command_lines import ROOT, python
from printed import Block, blocks, text

from dpexp.report import units

PAGE = "docs/extending.md"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package and its scripts, to add files to."""
    folder = tmp_path / "copy"
    for name in ("dpexp", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def add(section: str, checkout: Path) -> list[str]:
    """Write the files that a section of the page prints, which begin with their path; returns the paths."""
    (printed,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text(PAGE), re.DOTALL | re.MULTILINE)
    added = []
    for block in (Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", printed, re.S | re.M)):
        path = re.match(r"# (dpexp/[\w/]+\.py)\n", block.text)
        if path:
            assert not (checkout / path[1]).exists(), f"{path[1]} is not a new file"
            (checkout / path[1]).write_text(block.text)
            added.append(path[1])
    return added


def run(checkout: Path, *words: str) -> str:
    """What ``scripts/run.py`` of the copy prints to stdout."""
    return script(checkout, "run.py", *words)


def script(checkout: Path, name: str, *words: str) -> str:
    """What a script of the copy prints to stdout."""
    done = launching.wait(launching.start(str(checkout / "scripts" / name), *words, folder=checkout))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_experiment_is_two_files_and_four_commands(tmp_path: Path, dpexp_home: Path) -> None:
    page = [block for block in blocks(PAGE) if "experiments/one_block" in block.text]
    config, readme, commands = page
    folder = tmp_path / "experiments" / "one_block"
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(config.text)
    (folder / "README.md").write_text(readme.text)
    shown = []
    for _, name, *words in commands.commands():
        done = python(ROOT / name, *words, folder=tmp_path, DPEXP_TRACK="0")
        assert done.returncode == 0, done.stderr
        shown.append(joined(done.stdout))
    assert "3 of 3 runs" in shown[0]
    assert "HOLDS: block2 alone copies at most half the bytes. 0.40x (1.68 kB against 4.24 kB)" in shown[1]
    assert "one_block" in shown[3]
    answer = "block2 alone copies 1.68 kB a step, the whole model 4.24 kB."
    assert answer in (folder / "README.md").read_text()
    assert (folder / "figure.png").is_file()


def test_a_strategy_is_two_files(checkout: Path, dpexp_home: Path) -> None:
    assert add("A strategy", checkout) == ["dpexp/config/strategies/halves.py", "dpexp/strategies/halves.py"]
    record = json.loads(run(checkout, "halves", "--virtual", "2", "--no-track", "--json"))
    assert (record["strategy"], record["execution"], record["status"]) == ("halves", "virtual", "finished")
    assert record["verification"]["passed"]
    on = {row["module"]: row["device"] for row in record["device_map"]}
    assert on == {"block1": "cpu:0", "block2": "cpu:1", "block3": "cpu:1"}
    assert "The first submodules on one device, the others on another." in run(checkout, "--help")
    assert "--first" in run(checkout, "halves", "--help")


def test_a_finding_is_one_file(checkout: Path, dpexp_home: Path) -> None:
    words = ("whole", "--virtual", "4", "--full", "--no-track")
    found = "Of a batch of 30 rows some replicas compute 8 and others 6, and wait."
    assert found not in joined(run(checkout, *words))
    assert add("A finding", checkout) == ["dpexp/report/findings/uneven_split.py"]
    summary = joined(run(checkout, *words))
    assert f"{found} Choose a --batch-size that 4 divides, such as 32." in summary
    assert found not in joined(run(checkout, "whole", "--virtual", "3", "--full", "--no-track"))


def joined(printed: str) -> str:
    """The text with its lines joined."""
    return " ".join(printed.split())


FIGURE = "# in FIGURES of dpexp/record/figures/registry.py\n"
LOOK = """
import json
from pathlib import Path
from dpexp.record.journal.fold import load
from dpexp.study.experiment.metrics import METRICS
from dpexp.tracking.content.content import summary_metrics
from dpexp.tracking.content.view import VIEW_STATE
(folder,) = Path("{home}", "runs").iterdir()
print(json.dumps([summary_metrics(load(folder)), VIEW_STATE, list(METRICS)]))
"""


def test_a_figure_is_one_entry(checkout: Path, dpexp_home: Path) -> None:
    (entry,) = (block.text for block in blocks(PAGE) if block.text.startswith(FIGURE))
    registry = checkout / "dpexp" / "record" / "figures" / "registry.py"
    before, end, after = registry.read_text().partition("\n)  # fmt: skip\n")
    registry.write_text(f"{before}\n{entry.removeprefix(FIGURE).rstrip()}{end}{after}")

    shown = run(checkout, "single", "--steps", "8", "--no-track")
    (folder,) = (dpexp_home / "runs").iterdir()
    record = json.loads((folder / "record.json").read_text())
    rate = record["summary"]["steps_per_s"]
    assert rate == pytest.approx(1000 / record["summary"]["step_ms"]["median"])
    assert f"; steps/s {units.number(rate)}\n" in shown

    listed = script(checkout, "runs.py", "list")
    assert "steps/s" in listed.splitlines()[0]
    assert units.number(rate) in listed.splitlines()[1]
    (row,) = csv.DictReader(script(checkout, "report.py", "--csv").splitlines())
    assert float(row["steps_per_s"]) == rate
    assert "steps/s" in script(checkout, "report.py")

    done = launching.wait(launching.start("-c", LOOK.format(home=dpexp_home), folder=checkout))
    metrics, view, claims = json.loads(done.stdout)
    assert metrics["steps_per_s"] == float(f"{rate:.3g}")
    assert "metrics.`steps_per_s`" in view
    assert "steps_per_s" in claims

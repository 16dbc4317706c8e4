"""README and docs: what they print works as printed, what they link to exists, and README is short."""

import json
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from command_lines import CommandLines, CommandResult, python
from printed import PAGES, ROOT, blocks, inline_commands, text, write_examples

RUN_ELSEWHERE = {
    "python3 -m venv .venv && .venv/bin/pip install": ".ci/run",
    "bash .ci/run": ".ci/run",
    "python scripts/ui.py": "test_the_ui_serves_its_link_on_loopback_and_ends_with_all_processes",
    "python scripts/report.py --check": "test_every_experiment_matches_its_records_and_still_builds",
}
"""Commands, by how they begin, that another test or CI runs."""


def is_run_elsewhere(words: list[str]) -> bool:
    return any(" ".join(words).startswith(known) for known in RUN_ELSEWHERE)


def commands(page: str) -> list[list[str]]:
    """The words of each command that a page prints and that needs nothing more than dpexp, each once."""
    runnable = [block for block in blocks(page) if block.language == "sh" and not block.needs]
    found = [*chain.from_iterable(block.commands() for block in runnable), *inline_commands(page)]
    return [words for i, words in enumerate(found) if words not in found[:i] and not is_run_elsewhere(words)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which the commands of a page find what they find in a checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("scripts", "experiments", "tests", "dpexp", "README.md", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(words: list[str], folder: Path, lines: CommandLines, home: Path) -> CommandResult:
    """Run a command as printed; its run is not delivered, unless it is told to."""
    environment = {"DPEXP_HOME": str(home), "DPEXP_TRACK": "0", "COLUMNS": "80"}
    if words[0] == "torchrun":
        words = ["python", "-m", "torch.distributed.run", *words[1:]]
    if words[1].endswith(".py"):
        words[1] = str((folder / words[1]).resolve())
    if words[1:3] == ["-m", "pytest"]:  # not forked: pytest rewrites plugins before they are imported
        command = [sys.executable, *words[1:]]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | environment, capture_output=True, text=True
        )
    else:
        done = python(*words[1:], folder=folder, **environment)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_that_a_page_prints_works(
    page: str, checkout: Path, command_lines: CommandLines, dpexp_home: Path
) -> None:
    write_examples(page, checkout)
    for words in commands(page):
        done = run(words, checkout, command_lines, dpexp_home)
        assert done.code == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    for path in dpexp_home.glob("runs/*/record.json"):
        record = json.loads(path.read_text())
        is_verified = record["verification"].get("passed", record["strategy"] == "sweep")
        assert (record["status"], is_verified) == ("finished", True), record["config"]


def test_every_python_example_compiles() -> None:
    """Those that are files: some call packages that are not installed here."""
    pairs = [(page, block.text) for page in PAGES for block in blocks(page) if block.language == "python"]
    examples = [(page, text) for page, text in pairs if re.match(r"# [\w/]+\.py\n", text)]
    assert {"docs/custom-layouts.md", "docs/extending.md"} <= {page for page, _ in examples}
    for page, example in examples:
        compile(example, page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_says_what_it_needs(page: str) -> None:
    """A block marked ``sh`` may need transformers: ``test_hugging_face`` runs those."""
    printing = [block for block in blocks(page) if block.commands()]
    assert {block.needs for block in printing if block.language == "sh"} <= {"", "transformers"}
    assert [block for block in printing if block.language not in ("sh", "bash")] == []
    assert [block for block in printing if block.language == "bash" and not block.needs] == []
    assert re.findall(r"^ {4,}(?:python|torchrun) .*", text(page), re.MULTILINE) == [], "use a fenced block"


def test_a_command_that_is_run_elsewhere_is() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
    for name in RUN_ELSEWHERE.values():
        assert f"def {name}(" in tests or (ROOT / name).is_file()


def test_readme_shows_what_one_sees(checkout: Path, command_lines: CommandLines, dpexp_home: Path) -> None:
    """The output is that of its command, but for numbers that another run has."""
    (shown,) = [block.text for block in blocks("README.md") if block.language == "text"]
    command = ["python", "scripts/run.py", "whole", "--virtual", "3"]
    assert command in commands("README.md")
    seen = run(command, checkout, command_lines, dpexp_home).stdout
    wanted, found = (without_verdict(without_figures(text)) for text in (shown, seen))
    assert found[: len(wanted)] == wanted


def without_verdict(lines: list[str]) -> list[str]:
    """Without the verdict and the rates, which depend on how noisy the machine is; long ones are wrapped."""
    strategy, median, errors = (
        next(number for number, line in enumerate(lines) if line.startswith(f"  {word} "))
        for word in ("strategy", "median", "errors")
    )
    return [lines[0], *lines[strategy : median + 1], *lines[errors:]]


def without_figures(text: str) -> list[str]:
    """The lines of a summary without its times, sizes, run id and errors."""
    text = re.sub(r"[\d.]+e[-+]\d+", "", text)
    text = re.sub(r"\([0-9a-f]{12}\)|[\d.,]+ (?:[µm]?s\b|MB)|[\d,]+ samples|[\d.]+%?|\(%\)", "", text)
    return text.rstrip().splitlines()


def test_readme_takes_five_minutes() -> None:
    assert len(text("README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_title_and_says_what_it_is_about(page: str) -> None:
    title, blank, first = text(page).splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert re.match(r"[A-Z`]|dpexp", first), f"{page}: a sentence must follow the title"


def targets(page: str) -> set[str]:
    """The files that a page links to and shows, relative to the root."""
    found = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(page))
    return {str((ROOT / page).parent.joinpath(name).resolve().relative_to(ROOT)) for name in found}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_exists(page: str) -> None:
    assert {name for name in targets(page) if not (ROOT / name).exists()} == set()


def test_every_page_is_reached_from_readme() -> None:
    assert {page for page in PAGES if page.startswith("docs/")} <= targets("README.md")


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_link_points_to_within_a_page_is_there(page: str) -> None:
    for name, fragment in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text(page)):
        path = (ROOT / page).parent / name if name else ROOT / page
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        assert fragment in map(anchor, headings), f"{page}: {name}#{fragment}"

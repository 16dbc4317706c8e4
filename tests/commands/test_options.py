"""Every option is used by a test that it works in; here are those of the ones that no other file uses."""

import ast
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import journals
import needs
import pytest
import typer.main
from command_lines import ROOT, script
from launching import record, run

import dpexp
from dpexp.commands.main import app
from dpexp.config.run_config import RunConfig
from dpexp.record.record import Record, finish
from dpexp.study.worktree import _git, reproduce

SHORT = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")
REFUSALS = ("test_user_errors.py", "user_error_cases.py")
"""Files in which options are only refused."""
CALLED_AS = {
    "runs": ("runs.py", "reproduce("),
    "sweep": ("sweep.py", "Sweep.new("),
    "report": ("report.py",),
    "ui": ("ui.py",),
}
"""What stands in a file that tests a script, or the function that takes its options."""
OF_ERRORS = ("--debug",)
"""Options that show their effect at an error alone, which ``test_user_errors.py`` tests."""


# --- the list ------------------------------------------------------------------------------------------


def options(command: Any, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option of a command and of its subcommands: the script that has it, and how it is spelled."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield name, (*parameter.opts, *parameter.secondary_opts)
    for subcommand in getattr(command, "commands", {}).values():
        yield from options(subcommand, name)


def every_option() -> set[tuple[str, tuple[str, ...]]]:
    commands: Any = typer.main.get_command(app)
    return {option for name, command in commands.commands.items() for option in options(command, name)}


@cache
def words_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The words of the texts in a file of tests, and the names that it gives values to."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    expected = {id(text) for node in nodes for text in expected_texts(node)}
    texts = [node.value for node in nodes if is_text(node) and id(node) not in expected]  # type: ignore[attr-defined]
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    keys = {key.value for node in nodes if isinstance(node, ast.Dict) for key in node.keys if is_text(key)}  # type: ignore[union-attr]
    return frozenset(word for text in texts for word in text.split()), frozenset(keywords | keys)


def expected_texts(node: ast.AST) -> Iterator[ast.AST]:
    """The texts of a node with which an output is compared, as messages are, and docstrings."""
    found: list[ast.expr | ast.stmt] = []
    if isinstance(node, ast.Compare):
        found = [node.left, *node.comparators]
    elif isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "match"):
        found = [node.value]
    for each in found:
        yield from ast.walk(each) if isinstance(each, ast.JoinedStr) else [each]


def is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_used(script_name: str, spellings: tuple[str, ...], path: Path) -> bool:
    """Whether tests of this script in a file use an option, as a word or as a value of a config."""
    words, names = words_of(path)
    given = {word.partition("=")[0] for word in words}
    if script_name == "run":
        fields = {spelling.lstrip("-").replace("-", "_") for spelling in spellings}
        return bool(given & set(spellings)) or ("RunConfig" in path.read_text() and bool(names & fields))
    fields = {spelling.lstrip("-").replace("-", "_") for spelling in spellings}
    is_called = any(names_it in path.read_text() for names_it in CALLED_AS[script_name])
    return is_called and bool(given & set(spellings) or names & fields)


def test_every_option_is_used_by_a_test() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in REFUSALS]
    found = every_option()
    assert len(found) > 60
    unused = {option for option in found if not any(is_used(*option, path) for path in files)}
    assert {spellings for _, spellings in unused} <= {OF_ERRORS}, sorted(unused)


def test_an_option_that_no_test_uses_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_ui.py"
    path.write_text('assert "--port 5 is busy" in script("ui.py", "--host")\nraises(E, match="--port 7")\n')
    assert is_used("ui", ("--host",), path)
    assert not is_used("ui", ("--port",), path)


# --- options that no other file uses -------------------------------------------------------------------


def test_ranks_on_gloo_compute_under_autocast_in_the_named_experiment() -> None:
    words = ("--devices", "2", "--model", "blocks", "--block", "block2", *SHORT)
    found = record(run("fsdp", *words, "--comm", "gloo", "--autocast", "bfloat16", "--experiment", "mine"))
    assert (found["experiment"], found["config"]["comm"]) == ("mine", "gloo")
    assert found["verification"]["passed"] is True
    assert 1e-4 < found["verification"]["first_steps"]["gradient_error"] < 0.05, "it computed in bfloat16"
    gathers = {row["module"] for row in found["device_map"] if row["placement"] == "S(0)"}
    assert "block2" in gathers


def test_a_list_in_the_environment_is_split_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPEXP_BLOCK", "block1 block3")
    found = record(run("block", "--virtual", "2", "--model", "blocks", *SHORT))
    assert found["config"]["block"] == ["block1", "block3"]


def test_a_report_on_an_experiment_writes_its_readme_again(tmp_path: Path) -> None:
    folder = tmp_path / "whole_vs_block"
    shutil.copytree(ROOT / "experiments" / folder.name, folder)
    readme = (folder / "README.md").read_text()
    mark = "<!-- begin: answer -->\n"
    (folder / "README.md").write_text(readme.replace(mark, f"{mark}stale\n"))
    assert script("report.py", "--check", folder).returncode == 1
    done = script("report.py", folder)
    assert done.returncode == 0, done.stderr
    assert f"wrote {folder / 'README.md'}" in done.stderr
    assert (folder / "README.md").read_text() == readme


def test_show_is_short_and_full_on_request(dpexp_home: Path) -> None:
    finish(journals.complete(dpexp_home / "runs", "shown"))
    short, full = (script("runs.py", "show", "last", *words).stdout for words in ((), ("--full",)))
    assert len(full.splitlines()) > len(short.splitlines()) > 5


@needs.checkout
def test_exact_runs_the_recorded_commit() -> None:
    own = dpexp.run(RunConfig("whole", virtual=2, steps=3, threads=1, track=False), quiet=True)
    parent = _git("rev-parse", "--verify", "--quiet", "HEAD~1").stdout.strip()
    own.environment["git"] = {"commit": parent or own.environment["git"]["commit"], "dirty": False}
    reproduce(own, exact=True)
    repeated = [Record.load(path) for path in (Path(os.environ["DPEXP_HOME"]) / "runs").iterdir()]
    (again,) = [one for one in repeated if one.run_id != own.run_id]
    assert again.environment["git"]["commit"] == own.environment["git"]["commit"]

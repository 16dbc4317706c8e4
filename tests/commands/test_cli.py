"""The command line: options from the config classes, their precedence, and messages for bad input."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from helpers.command_lines import script
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dpexp.commands import plan, report, run, runs, sweep, ui
from dpexp.config.options import flag_name
from dpexp.config.run_config import option_names
from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.models.registry import MODELS
from dpexp.record.batches import batches
from dpexp.record.record import Record


def cli(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return script("run.py", *words, **variables)


def config_of(*words: str, **variables: str) -> dict[str, object]:
    done = cli(*words, "--print-config", **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("strategy", list(STRATEGY_OPTIONS))
def test_every_field_of_the_config_is_an_option(strategy: str) -> None:
    shown = cli(strategy, "--help").stdout
    for name in option_names(strategy):
        assert flag_name(name) in shown
    for other in set(STRATEGY_OPTIONS) - {strategy}:
        for name in set(option_names(other)) - set(option_names(strategy)):
            assert f"{flag_name(name)} " not in shown


def commands() -> dict[str, TyperCommand]:
    """Every command by its name, such as ``runs list``."""
    found = {}
    for module in (run, runs, sweep, report, ui, plan):
        name, app = module.__name__.rpartition(".")[2], get_command(module.app)
        subcommands = app.commands if isinstance(app, TyperGroup) else {"": app}
        found |= {f"{name} {word}".strip(): sub for word, sub in subcommands.items()}
    return found


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_has_two_valid_examples_and_the_variables(name: str) -> None:
    made, (app, _, subcommand) = commands()[name], name.partition(" ")
    shown = script(f"{app}.py", *subcommand.split(), "--help", COLUMNS="200").stdout
    examples = [line.strip() for line in shown.partition("Examples:")[2].splitlines() if ".py" in line]
    assert len(set(examples)) == 2
    for example in examples:
        words = shlex.split(example.partition(f"{app}.py")[2])[len(subcommand.split()) :]
        made.make_context(name, words)
    assert "DPEXP_HOME" in shown


def test_help_has_panels_the_strategys_own_first() -> None:
    shown = cli("hybrid", "--help", COLUMNS="200").stdout
    titles = ["Model and data", "Devices and layout", "Measuring", "Tracking", "Output"]
    assert re.findall(r"^╭─ (.*?) ─", shown, re.MULTILINE) == ["Options", "Options of hybrid", *titles]
    assert "random[:samples=100]" in shown, "brackets in a text are not markup"
    assert "FILE.py:NAME or package.module:NAME" in shown
    assert "[env var: DPEXP_BATCH_SIZE]" in shown


def test_an_option_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('batch_size = 7\nsteps = 7\nseed = 7\nrun_name = "one"\n')
    variables = {"DPEXP_BATCH_SIZE": "8", "DPEXP_STEPS": "8", "DPEXP_HOST": "a b", "DPEXP_RUN_NAME": ""}
    found = config_of("hybrid", "--config", str(file), "--batch-size", "9", **variables)
    assert [found[key] for key in ("batch_size", "steps", "seed", "warmup")] == [9, 8, 7, 10]
    assert (found["host"], found["run_name"]) == (["a", "b"], "one"), "an empty variable is unset"


def test_a_printed_config_can_be_read_back(tmp_path: Path) -> None:
    printed = config_of("hybrid", "--host", "a", "--host", "b", "--sparse", "--virtual", "3", "--epochs", "2")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(printed))
    assert config_of("hybrid", "--config", str(file)) == printed


def test_a_dry_run_prints_a_planned_record_and_writes_nothing(dpexp_home: Path) -> None:
    done = cli("block", "--virtual", "3", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    planned = Record.from_json(done.stdout)
    assert (planned.status, planned.execution, planned.run_id) == ("planned", "virtual", "")
    assert planned.devices["used"] == ["cpu:0", "cpu:1", "cpu:2"]
    assert [group.split for group in batches(planned)] == [[10, 10, 10], [4, 4, 2]]
    shown = cli("whole", "--virtual", "8", "--dry-run").stdout
    for words in ("Would run", "7 × 4 + 2", "5 × 2", "cpu:7", "nothing was run"):
        assert words in shown
    assert not list(dpexp_home.iterdir())


# --- models ------------------------------------------------------------------------------------------


def test_models_lists_the_registry_with_every_option_and_its_default() -> None:
    found = {row["model"]: row["options"] for row in json.loads(cli("models", "--json").stdout)}
    assert list(found) == list(MODELS)
    assert [(each["option"], each["default"]) for each in found["linear"]] == [("in", 5), ("out", 2)]
    shown = cli("models").stdout
    assert "embedding: Ids (batch,) or (batch, length) -> logits" in shown
    assert "rows=1000" in shown

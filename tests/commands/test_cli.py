"""The command line: options from the config classes, their precedence, and messages for bad input."""

import json
import re
import shlex
import subprocess
from operator import attrgetter
from pathlib import Path

import pytest
from helpers.command_lines import script
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dpexp.commands import report, run, runs, sweep, ui
from dpexp.commands.options import PANELS, RANKS
from dpexp.config.options import flag_name, option_fields
from dpexp.config.run_config import RunConfig, option_names
from dpexp.config.strategy_options import STRATEGY_OPTIONS


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


@pytest.mark.parametrize("strategy", ["single", "hybrid", "ddp"])
def test_help_has_panels_the_strategys_own_first(strategy: str) -> None:
    shown = cli(strategy, "--help", COLUMNS="200").stdout
    titles = ["Model and data", "Devices and layout", "Measuring", "Tracking", "Output"]
    own = [f"Options of {strategy}"] * (strategy != "single")
    assert re.findall(r"^╭─ (.*?) ─", shown, re.MULTILINE) == ["Options", *own, *titles]
    assert "random[:samples=100]" in shown, "brackets in a text are not markup"
    assert "[env var: DPEXP_BATCH_SIZE]" in shown


def test_every_option_that_all_strategies_have_is_in_a_panel() -> None:
    listed = [name for names in PANELS.values() for name in names]
    shared = [*map(attrgetter("name"), option_fields(RunConfig)), *RANKS]
    assert sorted(listed) == sorted(shared)


def commands() -> dict[str, TyperCommand]:
    """Every command by its name, such as ``runs list``."""
    found = {}
    for module in (run, runs, sweep, report, ui):
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


def test_an_option_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('batch_size = 7\nsteps = 7\nseed = 7\nhost = ["a", "b"]\n')
    found = config_of(
        "hybrid",
        "--config",
        str(file),
        "--batch-size",
        "9",
        DPEXP_BATCH_SIZE="8",
        DPEXP_STEPS="8",
        DPEXP_SPARSE="1",
    )
    assert [found[key] for key in ("batch_size", "steps", "seed", "warmup")] == [9, 8, 7, 10]
    assert (found["host"], found["sparse"]) == (["a", "b"], True)


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('run_name = "one"\n')
    assert config_of("whole", DPEXP_RUN_NAME="")["run_name"] == ""
    assert config_of("whole", "--config", str(file), DPEXP_RUN_NAME="")["run_name"] == "one"
    assert config_of("whole", "--run-name", "two", "--config", str(file))["run_name"] == "two"


def test_a_list_in_the_environment_is_split_at_spaces() -> None:
    assert config_of("block", DPEXP_BLOCK="block1 block3")["block"] == ["block1", "block3"]


def test_a_printed_config_can_be_read_back(tmp_path: Path) -> None:
    printed = config_of("hybrid", "--host", "a", "--host", "b", "--sparse", "--virtual", "3", "--epochs", "2")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(printed))
    assert config_of("hybrid", "--config", str(file)) == printed


def test_a_config_may_be_yaml(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("strategy: block\nblock: [block1]\nlr: 1\n")
    assert config_of("block", "--config", str(file))["block"] == ["block1"]


def test_dry_run_predicts_devices_device_map_and_split_and_writes_nothing(dpexp_home: Path) -> None:
    done = cli("block", "--virtual", "3", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert planned["execution"] == "virtual"
    assert planned["devices"]["used"] == ["cpu:0", "cpu:1", "cpu:2"]
    assert [(row["rows"], row["batches"], row["pieces"]) for row in planned["splits"]] == [
        (30, 3, [10, 10, 10]),
        (10, 1, [4, 4, 2]),
    ]
    assert {row["module"] for row in planned["device_map"]} == {"block1", "block2", "block3"}
    assert not list(dpexp_home.iterdir())


def test_dry_run_prints_a_readable_plan(dpexp_home: Path) -> None:
    done = cli("whole", "--virtual", "8", "--dry-run")
    assert done.returncode == 0, done.stderr
    for words in ("7 × 4 + 2", "5 × 2", "cpu:7", "nothing was run"):
        assert words in done.stdout


# --- models ------------------------------------------------------------------------------------------


def test_models_lists_the_registry_with_every_option_and_its_default() -> None:
    from dpexp.models.registry import MODELS

    found = {row["model"]: row["options"] for row in json.loads(cli("models", "--json").stdout)}
    assert list(found) == list(MODELS)
    assert [(each["option"], each["default"]) for each in found["linear"]] == [("in", 5), ("out", 2)]
    shown = cli("models").stdout
    assert "embedding: Ids (batch,) or (batch, length) -> logits" in shown
    assert "rows=1000" in shown


DEEP = """
from torch import nn


def deep(blocks=60):
    layers = (nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1)) for _ in range(blocks))
    return nn.Sequential(*layers)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("block", "--block", "*.0", "--dry-run", "--model", "deep.py:deep"),
        (
            "whole",
            "--virtual",
            "2",
            "--model",
            "deep.py:deep:blocks=20",
            "--batch-size",
            "8",
            *["--steps", "2", "--warmup", "0", "--no-track"],
        ),
        ("place", "--virtual", "2", "--model", "deep.py:deep"),
    ],
)
@pytest.mark.usefixtures("dpexp_home")
def test_no_screen_grows_with_the_layers_of_a_model(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    done = script("run.py", *words, folder=tmp_path, COLUMNS="80")
    assert done.returncode == (2 if words[0] == "place" else 0), done.stderr
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert 0 < len(lines) < 80  # its model has 81 modules or more, and a noisy machine adds findings
    assert max(map(len, lines)) < 600

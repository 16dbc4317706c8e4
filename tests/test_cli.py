"""The command line: made from the config classes, layered, and clear about mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpexp.config import STRATEGY_OPTIONS, flag_name, option_names

ROOT = Path(__file__).resolve().parents[1]


def cli(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run.py"), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
        check=False,
    )


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


def test_dry_run_can_be_read(dpexp_home: Path) -> None:
    done = cli("whole", "--virtual", "8", "--dry-run")
    assert done.returncode == 0, done.stderr
    for words in ("7 × 4 + 2", "5 × 2", "cpu:7", "nothing was run"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["hybird"], ["unknown command 'hybird'", "did you mean 'hybrid'?", "functional"]),
        (["whole", "--batchsize", "3"], ["--batchsize", "--batch-size"]),
        (["whole", "--batch-size", "0"], ["--batch-size 0", "at least 1"]),
        (["whole", "--steps", "0"], ["--steps 0", "at least 1"]),
        (["whole", "--batch-size", "many"], ["--batch-size", "integer"]),
        (["whole", "--sparse"], ["--sparse"]),
        (["whole", "--dtype", "float31"], ["--dtype 'float31'", "float32"]),
        (["whole", "--devices", "99"], ["--devices 99", "--virtual 99"]),
        (["whole", "--devices", "cuda:99"], ["--devices 'cuda:99'", "--virtual"]),
        (["whole", "--virtual", "2", "--devices", "1"], ["--virtual 2", "--devices 1"]),
        (["whole", "--virtual", "2", "--backend", "torch"], ["--backend torch", "--backend portable"]),
        (["block", "--block", "block9"], ["--block 'block9' not found", "block1, block2, block3"]),
        (["hybrid", "--host", "linaer"], ["--host 'linaer' not found", "did you mean 'linear'?"]),
        (["whole", "--model", "lineer"], ["'lineer'", "did you mean 'linear'?"]),
        (["whole", "--model", "linear:ins=5"], ["'ins'"]),
        (["whole", "--data", "digit"], ["'digit'", "did you mean 'digits'?"]),
        (["whole", "--data", "arrays:/nowhere.npz"], ["/nowhere.npz"]),
        (["whole", "--model", "linear:in=4", "--data", "digits"], ["module 'fc'", "(30, 64)"]),
        (["whole", "--config", "/nowhere.toml"], ["--config /nowhere.toml", "No such file"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message_before_anything_is_written(
    dpexp_home: Path, words: list[str], expected: list[str]
) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in expected:
        assert word in done.stderr
    assert not list(dpexp_home.iterdir())


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "batchsize = 3", ["unknown key for whole 'batchsize'", "did you mean 'batch_size'?"]),
        ("a.toml", "batch_size = '3'", ["'batch_size' takes int, found '3'"]),
        ("a.toml", "batch_size = 3\nbatch_size = 4", ["a.toml", "overwrite"]),
        ("a.json", '{"seed": 1, "seed": 2}', ["key 'seed' is there twice"]),
        ("a.json", "[1]", ["keys and values"]),
        ("a.yaml", "a: [", ["--config"]),
        ("a.yaml", "seed: 1\nseed: 2", ["key 'seed' is there twice"]),
        ("a.ini", "", ["'.ini'", ".toml"]),
        ("a.toml", 'strategy = "block"', ["for strategy 'block'", "'whole'"]),
        ("a.toml", "virtual = 0", ["--virtual 0"]),
    ],
)
def test_a_config_file_with_a_mistake_is_refused(
    tmp_path: Path, name: str, text: str, expected: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    done = cli("whole", "--config", str(file), "--print-config")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in expected:
        assert word in done.stderr


def test_a_mistyped_variable_is_refused() -> None:
    done = cli("whole", "--print-config", DPEXP_BATCHSIZE="3")
    assert done.returncode == 2
    assert "DPEXP_BATCHSIZE is no option: did you mean 'DPEXP_BATCH_SIZE'?" in done.stderr

"""Options that no other file of tests uses."""

from pathlib import Path

import journals
import pytest
from command_lines import script
from launching import record, run

from dpexp.record.record import finish

SHORT = ("--steps", "4", "--warmup", "1", "--phase-steps", "2", "--json")


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


def test_show_is_short_and_full_on_request(dpexp_home: Path) -> None:
    finish(journals.complete(dpexp_home / "runs", "shown"))
    short, full = (script("runs.py", "show", "last", *words).stdout for words in ((), ("--full",)))
    assert len(full.splitlines()) > len(short.splitlines()) > 5

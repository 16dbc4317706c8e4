"""A run from elsewhere runs no code that it names, and a file that has changed is reported."""

import dataclasses
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import journals
from helpers.command_lines import ROOT, python

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.references import ALIASES, references
from dpexp.record.record import Record
from dpexp.study.reproduce import changed_files, reproduce

pytestmark = pytest.mark.usefixtures("forked_child_runs")
MODEL = """
from pathlib import Path
from dpexp.models.linear import Linear
Path(__file__).with_name("was-run").touch()
def make():
    return Linear(5, 2)
"""


def runs_script(*words: object, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return python(ROOT / "scripts" / "runs.py", *words, folder=folder, **variables)


def traps(folder: Path) -> Iterator[dict[str, Any]]:
    """Configs each of which leaves a file in the folder where it is run."""
    (folder / "trap.py").write_text(MODEL)
    command = shlex.join(["touch", f"{folder}/was-run"])
    yield {"model": f"os:system:command={command}"}
    yield {"model": f"subprocess:getoutput:cmd={command}"}
    yield {"model": f"{folder}/trap.py:make"}
    yield {"data": f"os:system:command={command}"}
    yield {"loss": f"{folder}/trap.py:make"}
    yield {"loss": "trap:make"}


def test_a_run_from_elsewhere_runs_nothing_that_it_names(dpexp_home: Path, tmp_path: Path) -> None:
    """As a file, and imported by ``sync``."""
    own = dpexp.run(RunConfig("single", steps=2, track=False), quiet=True)
    elsewhere = tmp_path / "elsewhere"
    for number, trap in enumerate(traps(tmp_path)):
        config = {**own.config, **trap}
        with pytest.raises(ConfigError, match="Nothing was run") as raised:
            reproduce(dataclasses.replace(Record.from_dict(own.to_dict()), config=config))
        assert next(iter(trap.values())) in str(raised.value)
        journals.complete(elsewhere, f"foreign{number}", config=config)
    synced = runs_script("sync", elsewhere, folder=tmp_path)
    assert synced.returncode == 0, synced.stderr
    for run in ("foreign2", dpexp_home / "runs/foreign0/record.json"):
        done = runs_script("reproduce", run, folder=tmp_path)
        assert done.returncode == 2
        assert "--trust" in done.stderr
        assert "Traceback" not in done.stderr
    assert re.search(r"imports os and calls system\(command=['\"]touch", done.stderr)
    assert not (tmp_path / "was-run").exists()


def test_own_runs_and_names_of_dpexp_are_reproduced_and_trust_runs_the_rest(
    dpexp_home: Path, tmp_path: Path
) -> None:
    model = tmp_path / "mine.py"
    model.write_text(MODEL)
    own = dpexp.run(RunConfig("single", steps=2, track=False, model=f"{model}:make"), quiet=True)
    (tmp_path / "was-run").unlink()
    record = tmp_path / "record.json"
    record.write_text(own.to_json())
    assert runs_script("reproduce", own.run_id).returncode == 0
    (tmp_path / "was-run").unlink()

    other_home = tmp_path / "other"
    other_home.mkdir()
    refused = runs_script("reproduce", record, DPEXP_HOME=str(other_home))
    assert refused.returncode == 2
    assert f"--model {model}:make imports {model} and calls make()" in refused.stderr
    assert not (tmp_path / "was-run").exists()
    model.write_text(MODEL + "# changed\n")
    trusted = runs_script("reproduce", record, "--trust", DPEXP_HOME=str(other_home))
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "was-run").exists()
    (row,) = own.files
    assert f"warning: {model} has changed since the run (SHA-256 {row['sha256'][:12]}… then" in trusted.stderr


def test_a_file_that_changed_is_reported_before_anything_runs(dpexp_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(b"12345678" * 50)
    data = f"text:{path},length=8"
    own = dpexp.run(RunConfig("single", steps=1, track=False, model="rnn", data=data), quiet=True)
    assert changed_files(own) == []
    path.write_text(path.read_text().replace("5", "6"))
    events: list[str] = []
    reproduced = reproduce(own, trust=True, warn=events.append)
    assert len(events) == 1
    assert str(path) in events[0]
    assert own.files[0]["sha256"][:12] in events[0]
    assert not reproduced.is_reproduced


def test_every_name_of_dpexp_runs_without_trust() -> None:
    for option, aliases in ALIASES.items():
        for name in aliases:
            reads_a_file = name == "text"
            text = name + ":/etc/hostname" * reads_a_file
            config = RunConfig("single", **{option: text})  # type: ignore[arg-type]
            outside = [reference for reference in references(config) if reference.is_outside]
            assert len(outside) == reads_a_file

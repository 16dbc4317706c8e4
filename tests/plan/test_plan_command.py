"""The command ``plan``: text, JSON, MLflow, exit codes."""

import json
import shlex
from pathlib import Path

from helpers.command_lines import script
from helpers.mlflow_reader import artifact_folder, only_run

from dpexp.config.process import home
from dpexp.tracking.store import Store


def test_it_prints_a_table_and_advice() -> None:
    done = script("plan.py", "single", "ddp", "--devices", "2xH100")
    assert done.returncode == 0, done.stderr
    assert "Plan for 2xH100" in done.stdout
    assert "Advice" in done.stdout


def test_json_is_the_rows_and_nothing_else() -> None:
    done = script("plan.py", "single", "--json")
    assert [row["layout"] for row in json.loads(done.stdout)] == ["single"]


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    for words in (["bogus"], ["--devices", "8"], ["single", "--batch-size", "0"]):
        done = script("plan.py", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_a_plan_of_nothing_has_the_reason_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "layout.py").write_text("def none(model, mesh):\n    raise OSError('no such rank')\n")
    done = script("plan.py", f"custom --layout {shlex.quote(f'{tmp_path}/layout.py:none')}")
    assert done.returncode == 1, done.stderr
    assert "OSError: no such rank" in done.stdout


def test_a_tracked_plan_is_a_table_in_mlflow_and_cannot_be_reproduced(dpexp_home: Path) -> None:
    assert script("plan.py", "single", "--track").returncode == 0
    (folder,) = (dpexp_home / "runs").iterdir()
    run = only_run(Store.from_environment(home()).uri, folder.name)
    assert "single" in (artifact_folder(run) / "plan.json").read_text()
    again = script("runs.py", "reproduce", "last")
    assert again.returncode == 2
    assert "is a plan" in again.stderr


def test_a_store_that_is_away_gets_the_plan_later(dpexp_home: Path) -> None:
    away = script("plan.py", "single", "--track", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert away.returncode == 3, away.stderr
    assert "runs.py sync" in away.stderr
    assert script("runs.py", "sync").returncode == 0

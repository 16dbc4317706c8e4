"""``scripts/runs.py``: what it lists, shows and refuses."""

import json
import re
from pathlib import Path

import pytest
from helpers import journals
from helpers.command_lines import script

from dpexp.record.fold import finish, load_record
from dpexp.record.journal import JOURNAL
from dpexp.record.record import Record


def test_list_has_a_line_for_each_run_the_newest_first(runs: Path) -> None:
    finish(journals.complete(runs, "older", started="2026-01-01T00:00:00+00:00"))
    finish(journals.complete(runs, "newer", started="2026-01-02T00:00:00+00:00", name="mine"))
    lines = script("runs.py", "list").stdout.splitlines()
    header = "run name strategy execution devices verified step IQR status MLflow started"
    assert lines[0].split() == header.split()
    assert [re.split("  +", line)[:6] for line in lines[1:]] == [
        ["newer", "mine", "whole", "virtual", "cpu:0, cpu:1", "yes"],
        ["older", "whole-linear-2xcpu", "whole", "virtual", "cpu:0, cpu:1", "yes"],
    ]
    assert all(line.split()[-4:-2] == ["finished", "no"] for line in lines[1:])


def test_list_and_show_speak_json(runs: Path) -> None:
    record = finish(journals.complete(runs, "one"))
    (listed,) = json.loads(script("runs.py", "list", "--json").stdout)
    assert listed["run_id"] == "one"
    assert listed["delivered"] == "no"
    assert listed["step_ms"] == record.summary["step_ms"]
    assert Record.from_dict(json.loads(script("runs.py", "show", "last", "--json").stdout)) == record
    short, full = (script("runs.py", "show", "last", *words).stdout for words in ((), ("--full",)))
    assert len(full.splitlines()) > len(short.splitlines()) > 5


def test_without_runs_the_list_says_how_to_make_one(dpexp_home: Path) -> None:
    listed = script("runs.py", "list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert f"no run yet in {dpexp_home / 'runs'}" in listed.stderr


@pytest.mark.parametrize(("command", "word"), [("show", "../secret"), ("sync", "/etc"), ("sync", "nothing")])
def test_no_name_leads_out_of_the_runs_folder(runs: Path, tmp_path: Path, command: str, word: str) -> None:
    finish(journals.complete(runs, "inside"))
    (tmp_path / "home" / "secret").mkdir()
    refused = script("runs.py", command, word)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: no ")
    assert "Traceback" not in refused.stderr
    assert [path.name for path in runs.iterdir()] == ["inside"]


def test_sync_reports_when_everything_is_delivered_and_skips_untracked_runs(runs: Path) -> None:
    config = {"strategy": "whole", "track": False}
    finish(journals.complete(runs, "private", config=config))
    message = "everything is delivered; not delivered unless named: 1 with --no-track\n"
    assert script("runs.py", "sync").stdout == message
    assert not (runs.parent / "mlflow.db").exists()


def test_a_running_run_is_left_to_its_own_follower(runs: Path) -> None:
    journal = journals.begin(runs, "going")
    synced = script("runs.py", "sync", "going")
    journal.close()
    assert synced.returncode == 0
    assert synced.stdout == "going  running: it is delivered while it runs\n"


def test_sync_closes_a_run_whose_process_died_whether_the_store_is_there_or_not(runs: Path) -> None:
    journal = journals.begin(runs, "dead")
    journals.step(journal, 0, 30)
    journal.close()
    synced = script("runs.py", "sync", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert "dead  closed: killed, 30 steps recorded" in synced.stdout
    assert synced.returncode == 3
    assert "connection refused; the journals stay" in synced.stderr
    assert json.loads((runs / "dead" / "record.json").read_text())["status"] == "killed"
    assert load_record(runs / "dead").status == "killed"


# --- bad runs ------------------------------------------------------------------------------------


def bad_runs(runs: Path) -> list[str]:
    """Runs that cannot be read, each for another reason; returns their ids."""
    first = journals.complete(runs, "whole").read_bytes().splitlines(keepends=True)[0]
    contents = {
        "empty": b"",
        "torn": first[:200],
        "garbage": b"no journal\n",
        "typed": first + b'{"at":1,"set":{"steps":3}}\n',
        "untimed": first + b'{"at":1e999,"extend":{"steps.loss":[1.0]}}\n',
    }
    for run_id, content in contents.items():
        (runs / run_id).mkdir()
        (runs / run_id / JOURNAL).write_bytes(content)
    return list(contents)


@pytest.mark.parametrize("command", ["list", "sync"])
def test_bad_runs_are_named_and_skipped_and_block_no_other(runs: Path, command: str) -> None:
    bad = bad_runs(runs)
    done = script("runs.py", command, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert "Traceback" not in done.stderr
    warned = [line.split()[2] for line in done.stderr.splitlines() if line.startswith("warning: run ")]
    assert sorted(warned) == sorted(bad)
    assert done.returncode == (0 if command == "list" else 3)  # the store of "whole" is away
    reached = "connection refused" if command == "sync" else "whole"
    assert reached in done.stdout + done.stderr


def test_a_bad_run_that_is_named_is_an_error_with_its_reason(runs: Path) -> None:
    for run_id in bad_runs(runs):
        shown = script("runs.py", "show", run_id)
        assert shown.returncode == 2
        assert shown.stderr.startswith(f"error: {runs / run_id / JOURNAL}")
        assert script("runs.py", "sync", run_id).returncode == 3


def test_remove_says_what_a_run_holds_and_deletes_it_when_confirmed(runs: Path) -> None:
    finish(journals.complete(runs, "kept"))
    finish(journals.complete(runs, "gone", name="mine"))
    asked = script("runs.py", "remove", "mine")
    assert asked.returncode != 0
    assert "run gone 'mine': finished, 100 steps; delivered to MLflow: no\nDelete it? [y/N]" in asked.stdout
    assert (runs / "gone").exists()
    removed = script("runs.py", "remove", "gone", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert removed.stdout.endswith("gone  removed\n")
    assert [path.name for path in runs.iterdir()] == ["kept"]


def test_remove_deletes_what_cannot_be_read_and_refuses_what_is_running(runs: Path) -> None:
    bad_runs(runs)
    removed = script("runs.py", "remove", "torn", "--yes")
    assert "run torn: unreadable, " in removed.stdout
    assert not (runs / "torn").exists()
    journal = journals.begin(runs, "going")
    refused = script("runs.py", "remove", "going", "--yes")
    journal.close()
    assert refused.returncode == 2
    assert "run going is running: end it first" in refused.stderr
    assert journal.path.exists()

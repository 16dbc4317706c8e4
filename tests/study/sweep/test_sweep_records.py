"""The Records in a sweep's folder are believed only with the seal of their journals, and written again."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import journals
import psutil
import pytest
import swept
from command_lines import script, shared, wait
from record_factory import whole
from test_dead_sweep import the_sweep, wait_until

from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import SWEEP_STRATEGY
from dpexp.record.journal.seal import unseal
from dpexp.record.record import Record
from dpexp.record.runs.check import record_problems, repair_record
from dpexp.record.runs.sweep_records import PROGRAMS, RECORDS, write_program, write_record
from dpexp.study.experiment.experiment import Experiment
from dpexp.study.experiment.records import PlannedRun, read_record
from dpexp.study.sweep.sweep import Sweep

NAMES = ("single.r1", "quick.r1", "sweep")
PLANNED = [PlannedRun("single", 1), PlannedRun("quick", 1)]


def swept_by_hand(runs: Path, run_id: str) -> Path:
    """A sweep of a run of dpexp and a program, which has ended."""
    facts = {"strategy": SWEEP_STRATEGY, "config": {}, "verification": {"checked": False}}
    journal = journals.begin(runs, run_id, **facts)
    finish(journals.end(journal))
    child = journals.complete(runs, f"{run_id}-single", name="single.r1", parent=run_id)
    finish(child)
    write_record(journal.folder, "single.r1", child)
    printed = whole(2, run_id=f"{run_id}-quick", parent=run_id)
    write_program(journal.folder, "quick.r1", printed)
    write_record(journal.folder, "sweep", journal.path)
    return journal.folder


@pytest.fixture
def folder(runs: Path) -> Path:
    """The folder of a sweep in which nothing is wrong."""
    return swept_by_hand(runs, "swept")


def texts(folder: Path) -> list[str]:
    return [problem.what for problem in record_problems(folder) if problem.what.startswith(RECORDS)]


def flipped(content: bytes) -> bytes:
    return content.replace(b"cpu", b"gpu", 1)


def without_seal(content: bytes) -> bytes:
    """As earlier versions wrote it."""
    return Record.from_dict(unseal(content)[0]).to_json().encode()


DAMAGE: dict[str, Callable[[Path, str], bytes]] = {
    "empty": lambda folder, name: b"",
    "no record": lambda folder, name: b"{}",
    "swapped": lambda folder, name: path(folder, NAMES[NAMES.index(name) - 1]).read_bytes(),
    "foreign": lambda folder, name: path(swept_by_hand(folder.parent, "other"), name).read_bytes(),
    "flipped": lambda folder, name: flipped(path(folder, name).read_bytes()),
    "unsealed": lambda folder, name: without_seal(path(folder, name).read_bytes()),
}


def path(folder: Path, name: str) -> Path:
    return folder / RECORDS / f"{name}.json"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named_and_written_again(folder: Path, name: str, damage: str) -> None:
    before = path(folder, name).read_bytes()
    assert texts(folder) == []
    path(folder, name).write_bytes(DAMAGE[damage](folder, name))
    assert len(texts(folder)) == 1
    assert f"{name}.json: " in texts(folder)[0]
    repair_record(folder, record_problems(folder))
    assert path(folder, name).read_bytes() == before
    assert texts(folder) == []


def test_a_record_of_an_earlier_state_of_the_journal_is_named(folder: Path) -> None:
    older = path(folder, "sweep").read_bytes()
    with journals.Journal.reopen(folder) as journal:
        journal.set({"summary.done": 2})
    finish(folder / "journal.jsonl")
    write_record(folder, "sweep", folder / "journal.jsonl")
    path(folder, "sweep").write_bytes(older)
    (found,) = texts(folder)
    assert "it was made from" in found


def test_the_record_of_an_earlier_run_of_a_cell_is_named_and_replaced(folder: Path, runs: Path) -> None:
    """A run that was killed, then the one that finished: the file of the first is put back."""
    of_run = {"name": "single.r1", "parent": folder.name, "status": "killed"}
    first = journals.begin(runs, "killed", **of_run, started="2020-01-01T00:00:00.000+00:00")
    finish(journals.end(first, "killed"))
    right = path(folder, "single.r1").read_bytes()
    write_record(folder, "single.r1", first.path)
    child = runs / "swept-single"
    assert [problem.kind for problem in record_problems(child)] == ["record"]
    assert record_problems(first.folder) == []
    repair_record(child, record_problems(child))
    assert path(folder, "single.r1").read_bytes() == right
    assert record_problems(child) == []


def test_check_names_what_is_wrong_and_repair_mends_it(folder: Path) -> None:
    path(folder, "single.r1").write_text("{}")
    found = script("runs.py", "check", folder.name)
    assert found.returncode == 1
    assert f"{folder.name}  record: records/single.r1.json: it has no seal" in found.stdout
    assert script("runs.py", "check", "--repair").returncode == 0
    assert script("runs.py", "check").returncode == 0


def test_a_program_of_an_earlier_version_has_no_journal_and_is_sealed_as_it_is(folder: Path) -> None:
    expected = read_record(path(folder, "quick.r1"))
    path(folder, "quick.r1").write_bytes(without_seal(path(folder, "quick.r1").read_bytes()))
    shutil.rmtree(folder / PROGRAMS)
    assert len(texts(folder)) == 1
    repair_record(folder, record_problems(folder))
    assert texts(folder) == []
    assert read_record(path(folder, "quick.r1")) == expected


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Cells quick, single, and one that prints its Record and lingers until the file «mended» exists."""
    return swept.experiment(tmp_path / "small", "lingers")


@pytest.mark.usefixtures("forked_child_runs")
def test_resume_believes_no_damaged_record_and_runs_no_finished_cell_again(experiment: Experiment) -> None:
    sweep = Sweep.new(experiment)
    sweep.run(PLANNED, lambda completed: None)
    right = {name: path(sweep.folder, name).read_bytes() for name in NAMES}
    for name, content in zip(NAMES, (b"", right["single.r1"], without_seal(right["sweep"])), strict=True):
        path(sweep.folder, name).write_bytes(content)
    assert the_sweep(experiment).missing(PLANNED) == []
    assert {name: path(sweep.folder, name).read_bytes() for name in NAMES} == right

    shutil.rmtree(sweep.folder / PROGRAMS)
    path(sweep.folder, "quick.r1").write_bytes(b"{}")
    assert the_sweep(experiment).missing(PLANNED) == [PlannedRun("quick", 1)]
    assert not path(sweep.folder, "quick.r1").exists(), "nothing reads it"


def test_a_program_that_has_printed_when_its_sweep_is_killed_is_not_run_again(experiment: Experiment) -> None:
    process = shared().start("scripts/sweep.py", str(experiment.folder), "--no-track")
    wait_until(lambda: "lingers" in swept.started(experiment, "printed"))
    (child,) = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    wait(process)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    (experiment.folder / "mended").touch()
    done = script("sweep.py", experiment.folder, "--no-track", "--resume")
    assert done.returncode == 0, done.stderr
    assert sorted(swept.started(experiment)) == ["lingers", "lingers", "quick", "quick"]
    sweep = the_sweep(experiment)
    assert load(sweep.folder).status == "finished"
    assert texts(sweep.folder) == []
    assert [each.name for each in (sweep.folder / PROGRAMS).glob("*.out")] == []

"""The folder of runs: one is found by name, all are listed, and those of other machines are imported."""

from pathlib import Path

import pytest
from helpers import journals

from dpexp.record.files import PROFILE_TRACE, JournalError
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import JOURNAL, RECORD
from dpexp.record.runs import UnknownRunError, find, import_journal


def test_a_run_is_found_by_id_prefix_name_and_last(runs: Path) -> None:
    finish(journals.complete(runs, "aab1", name="first", started="2026-01-01T00:00:00+00:00"))
    finish(journals.complete(runs, "aac2", name="again", started="2026-01-02T00:00:00+00:00"))
    finish(journals.complete(runs, "bbb3", name="again", started="2026-01-03T00:00:00+00:00"))
    expected = {"aab1": "aab1", "aac": "aac2", "b": "bbb3", "first": "aab1", "again": "bbb3", "last": "bbb3"}
    assert {name: find(runs, name).name for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa", r"begins 2 run ids \(aab1, aac2\): use a longer prefix"),
        ("agian", "did you mean 'again'"),
        *((name, "no run") for name in ("../runs/aab1", "/etc/passwd", "", ".")),
    ],
)
def test_a_name_without_a_unique_run_is_refused(runs: Path, name: str, message: str) -> None:
    with pytest.raises(UnknownRunError, match="there is no run"):
        find(runs, name)
    finish(journals.complete(runs, "aab1", name="again"))
    finish(journals.complete(runs, "aac2", name="other"))
    with pytest.raises(UnknownRunError, match=message):
        find(runs, name)


def test_a_run_from_another_machine_joins_the_runs(runs: Path, tmp_path: Path) -> None:
    foreign = journals.complete(tmp_path / "runs", "abroad")
    foreign.with_name(PROFILE_TRACE).write_bytes(b'{"traceEvents":[]}')
    for _ in range(2):
        folder = import_journal(foreign, runs)
        assert folder == runs / "abroad"
        names = {JOURNAL, RECORD, PROFILE_TRACE}
        assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
            names, 0o600
        )
        for name in (JOURNAL, PROFILE_TRACE):
            assert (folder / name).read_bytes() == foreign.with_name(name).read_bytes()
        assert load_record(folder) == load_record(foreign.parent)


def test_a_longer_copy_of_a_journal_replaces_a_shorter_one_and_another_is_refused(
    runs: Path, tmp_path: Path
) -> None:
    foreign = journals.complete(tmp_path / "runs", "grown")
    content = foreign.read_bytes()
    half = content[: content.index(b"\n", len(content) // 2) + 1]
    for copy, status in ((half, "killed"), (content, "finished"), (half, "finished")):
        foreign.write_bytes(copy)
        assert load_record(import_journal(foreign, runs)).status == status
    with pytest.raises(JournalError, match="different journals of one run id"):
        import_journal(journals.complete(tmp_path / "others", "grown", name="other"), runs)


@pytest.mark.parametrize("run_id", ["../../escaped", "/etc/x", "", ".hidden", ["list"]])
def test_a_foreign_run_id_cannot_leave_the_runs(runs: Path, tmp_path: Path, run_id: object) -> None:
    journal = journals.begin(tmp_path / "runs", "tame")
    journal.set(run_id=run_id)
    journal.close()
    with pytest.raises(JournalError, match=r"cannot be a folder's name|names a run"):
        import_journal(journal.path, runs)
    assert not runs.exists()

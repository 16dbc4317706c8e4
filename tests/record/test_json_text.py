"""Half of a surrogate pair in a Record's text: it is read as its escape, which every writer can write."""

import json
from pathlib import Path

import journals
from command_lines import script
from hypothesis import given
from hypothesis import strategies as st

from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.json_text import loads
from dpexp.study.experiment.records import parse_record

HALF = "x\ud83d|y"
TEXTS = st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('\\"ud8'))


def as_read(text: str) -> str:
    return "".join(rf"\u{ord(each):x}" if "\ud800" <= each <= "\udfff" else each for each in text)


@given(TEXTS)
def test_every_text_is_read_so_that_it_can_be_written(text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # of two halves a pair
    for ascii_only in (True, False):
        content = json.dumps({text: [text]}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        expected = as_read(whole if ascii_only else text)
        assert loads(content) == {expected: [expected]}
        assert expected.encode().decode() == expected


def test_reports_and_deliveries_write_a_record_with_half_a_pair(runs: Path, tmp_path: Path) -> None:
    data = {"name": HALF, "samples": 30, "description": HALF, "sha256": "ab" * 32}
    journal = journals.begin(runs, "half", name=f"run {HALF}", experiment=HALF, data=data)
    environment = fold(journal.path).environment
    journal.set(environment=environment | {"host": HALF})
    journals.observe(journal)
    journals.step(journal, 0, 20)
    journal.extend({f"phases.forward{HALF}": [0.5], f"metrics.{HALF}": [0.5]})
    finish(journals.end(journal))
    record = load(runs / "half")
    assert record == fold(journal.path) == parse_record(record.to_json())
    assert record.name == "run x\\ud83d|y"
    for words in (["--csv"], ["--out", str(tmp_path / "out")]):
        done = script("report.py", *words)
        assert done.returncode == 0, done.stderr
    assert "ud83d" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert script("runs.py", "sync").returncode == 0
    checked = script("runs.py", "check", "--store")
    assert checked.stdout == "1 run checked, 0 problems\n"

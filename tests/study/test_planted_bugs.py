"""experiments/planted_bugs: the committed verdicts are those of all its layouts, and README shows them."""

import ast
import json
import tomllib

import judge
import tables

FOLDER = judge.HERE
RECORDS = json.loads(tables.RECORDS.read_text())


def test_readme_has_the_tables_of_the_records() -> None:
    text = tables.README.read_text()
    assert text == tables.with_tables(text), "run tables.with_tables"


def test_every_layout_has_an_answer_and_a_verdict_over_all_its_ranks() -> None:
    files = {path.stem for path in (FOLDER / "layouts").glob("*.py")} - {"pieces"}
    assert files == set(judge.catalogue()) == set(tomllib.loads((FOLDER / "answers.toml").read_text()))
    judged = {(row["layout"], row["ranks"]) for row in RECORDS["layouts"]}
    assert judged == {(name, n) for name, layout in judge.catalogue().items() for n in layout.worlds}


def test_the_verdicts_are_what_the_messages_say() -> None:
    for row in RECORDS["layouts"]:
        layout = judge.catalogue()[row["layout"]]
        assert row == vars(layout.judged(row["ranks"], row["passed"], row["message"]))


def test_all_bugs_are_caught_and_named_and_no_right_layout_is() -> None:
    bugs = [name for name, layout in judge.catalogue().items() if layout.bug]
    assert len(bugs) >= 24
    assert {name.partition("_")[0] for name in bugs} == {"tp", "pp", "dp", "fsdp", "hybrid"}
    for row in RECORDS["layouts"]:
        assert row["passed"] is (row["layout"] not in bugs)
        assert row["is_right"] is not False
    assert all(row["passed"] for row in RECORDS["models"])


def test_a_bug_is_a_short_file_without_a_comment_on_it() -> None:
    paths = list((FOLDER / "layouts").glob("*_[0-9]*.py"))
    assert len(paths) >= 24
    for path in paths:
        source = path.read_text()
        assert len(source.splitlines()) <= 25
        assert "#" not in source
        assert ast.get_docstring(ast.parse(source))

"""experiments/planted_bugs: the committed verdicts are those of all its layouts, and README shows them."""

import ast
import json
import tomllib

import catalogue
import judge
import judge_kinds
import kind_tables
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


# --- the bugs that whole runs are judged on -------------------------------------------------------


def test_readmes_have_the_tables_of_the_verdicts_by_kind() -> None:
    text, details = tables.README.read_text(), kind_tables.DETAILS.read_text()
    assert text == kind_tables.between(text, "kinds", kind_tables.of_kinds()), "run kind_tables.write_tables"
    assert details == kind_tables.between(details, "bugs", kind_tables.of_bugs())


def test_every_case_of_every_kind_has_a_verdict_that_is_what_its_run_said() -> None:
    rows = {(row["kind"], row["bug"], row["over"]): row for row in kind_tables.records()["cases"]}
    cases = {(case.kind, case.name, case.over): case for case in catalogue.cases()}
    assert rows.keys() == cases.keys()
    for key, row in rows.items():
        assert row["is_right"] is judge_kinds.is_right(cases[key], row["ended"], row["message"])
        assert row["passed"] is (row["ended"] == "finished")


def test_bugs_are_of_all_kinds_and_over_all_strategies() -> None:
    cases = [case for case in catalogue.cases() if case.kind not in (*catalogue.RIGHT, "unseen")]
    assert len({(case.kind, case.name) for case in cases}) >= 120
    assert {case.over for case in cases} >= set(catalogue.STRATEGIES) - {"single"} | set(catalogue.CUSTOM)
    files = {path.stem for path in catalogue.HERE.glob("*.py")} - {"catalogue", "nets", "over"}
    assert files == {*catalogue.KINDS, *catalogue.RIGHT}


def test_a_bug_of_a_kind_says_in_a_sentence_what_is_wrong() -> None:
    for case in catalogue.cases():
        assert case.what.endswith("."), case
        assert bool(case.seen_by) is (case.kind == "unseen"), case

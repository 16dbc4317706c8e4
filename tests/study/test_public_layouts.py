"""experiments/public_layouts: README shows the committed Records; what is not proven is judged and shown."""

from collections import Counter
from dataclasses import replace

from experiments.public_layouts import checks, records, tables
from experiments.public_layouts.cells import LAYOUTS, cells, constants


def test_tables_records_findings_and_scripts_fit_together() -> None:
    assert checks.problems() == []


def test_every_file_with_a_mesh_is_a_cell_and_names_are_unique() -> None:
    found = cells()
    files = {path.relative_to(LAYOUTS) for path in LAYOUTS.glob("*/*.py") if "MESH = " in path.read_text()}
    assert files
    assert {f"{each.package}/{each.layout}.py" for each in found} == {str(path) for path in files}
    assert max(Counter(each.name for each in found).values()) == 1
    assert {each.ranks for each in found} <= {0, 1, 2, 4}


def test_a_difference_without_a_finding_is_a_problem_and_never_called_wrong() -> None:
    found = next(each for each in tables.outcomes() if each.is_proven)
    record = replace(
        found.record, status="failed", error={"type": "VerificationError", "message": "it differs"}
    )
    differs = replace(found, record=record)
    assert differs.says == tables.OPEN
    assert replace(differs, finding={"is": tables.NOT_RUN}).says == tables.OPEN
    assert replace(differs, finding={"is": tables.WRONG, "script": "none.py"}).says == tables.WRONG
    assert "no script shows without dpexp that it is wrong" in checks._of_outcome(
        replace(differs, finding={"is": tables.WRONG, "script": "none.py"})
    )


def test_a_record_of_another_config_is_named() -> None:
    found = next(each for each in tables.outcomes() if each.record)
    record = replace(found.record, config=found.record.config | {"batch_size": 7})
    assert records.changes(found.cell, record) == ["batch_size"]


def test_every_script_says_over_how_many_ranks_it_runs() -> None:
    assert all(constants(path)["RANKS"] in (1, 2, 4) for path in checks.SCRIPTS.glob("*.py"))

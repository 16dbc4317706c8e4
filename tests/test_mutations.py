"""tests/mutations.toml: every planted bug fits the code, and its tests exist.

``helpers/mutations.py`` plants them.
"""

from pathlib import Path

import mutations
import pytest


def test_every_mutation_applies_to_the_code_as_it_is(tmp_path: Path) -> None:
    for mutation in mutations.mutations():
        path = tmp_path / mutation.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((mutations.ROOT / mutation.file).read_text())
        mutation.apply(tmp_path)
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")


def test_every_mutation_names_tests_that_exist() -> None:
    names = [mutation.name for mutation in mutations.mutations()]
    assert len(names) == len(set(names)) >= 50
    for test in {test for mutation in mutations.mutations() for test in mutation.tests}:
        file, _, name = test.partition("::")
        text = (mutations.ROOT / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text


def test_a_text_that_is_not_there_once_is_no_mutation(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for old in ("x = 1", "y = 1"):
        with pytest.raises(ValueError, match=r"times in a\.py, not once"):
            mutations.Mutation("b", "a.py", old, "x = 2", []).apply(tmp_path)

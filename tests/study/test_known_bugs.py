"""experiments/known_bugs: every bug has its verdicts, README shows them, and they say what messages say."""

import pytest

from experiments.known_bugs import rewritten, tables
from experiments.known_bugs.catalogue import bugs


def test_readme_and_verdicts_fit_the_bugs() -> None:
    assert tables.problems() == []
    assert len(bugs()) >= 12


def test_a_found_bug_is_one_whose_mended_layout_is_proven() -> None:
    for bug in bugs():
        wrong, mended = (tables.verdicts()[bug.name, side] for side in ("wrong", "mended"))
        assert wrong["named"] == tables.named_module(wrong["message"])
        assert mended["ended"] == "proven", bug.name
        assert bug.link.startswith("https://github.com/")


def test_a_line_that_a_release_does_not_have_is_an_error() -> None:
    class Released:
        def value(self) -> int:
            return 1

    rewritten.rewrite(Released, "value", "return 1", "return more", more=2)
    rewritten.rewrite(Released, "value", "return 1", "return more", more=2)
    assert Released().value() == 2
    with pytest.raises(ValueError, match="0 times"):
        rewritten.rewrite(Released, "value", "return 3", "return 4")

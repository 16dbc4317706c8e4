"""Runs of wrong layouts and models end as failed verifications, and runs of right ones are verified."""

import pytest
from catalogue import KINDS, RIGHT, Run, runs
from launching import run

VERIFIED, REFUSED = 0, 1
"""Exit codes; of a run that does not begin it is 2."""


def is_quick(case: Run, cases: list[Run]) -> bool:
    """Whether it is the first of its kind over its layout."""
    return case is next(each for each in cases if (each.kind, each.over) == (case.kind, case.over))


def marked(*kinds: str) -> list[object]:
    """The cases of these kinds, of which most are slow."""
    found, parameters = runs(*kinds), []
    for case in found:
        marks = [] if is_quick(case, found) else [pytest.mark.slow]
        parameters.append(pytest.param(case, marks=marks, id=str(case)))
    return parameters


@pytest.mark.parametrize("case", marked(*KINDS, *RIGHT, "reported"))
def test_a_run_is_verified_or_its_bug_is_caught(case: Run) -> None:
    done = run(*case.command)
    assert done.returncode == (VERIFIED if case.is_right else REFUSED), done.stderr
    if case.is_right:
        assert case.words in done.stdout
    else:
        found = done.stderr.partition("does not compute what a single device computes")[2]
        assert found, done.stderr
        assert case.words in found
        assert "may be rounding" not in found

"""Runs of wrong layouts and models end as failed verifications, and runs of right ones are verified."""

from typing import Any

import pytest
from catalogue import KINDS, RIGHT, Run, runs
from helpers.engine_runs import along_mesh, ended
from helpers.in_ranks import in_ranks
from torch.nn import functional

from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare

CASES = {str(case): case for case in runs(*KINDS, *RIGHT, "reported")}
QUICK = {(case.kind, case.over): name for name, case in reversed(CASES.items())}.values()
"""The first of its kind over its layout, and what is wrong."""
PARAMETERS = [
    pytest.param(case, id=name, marks=pytest.mark.slow if case.is_right and name not in QUICK else [])
    for name, case in CASES.items()
]


def end(group: ProcessGroup | None, name: str) -> dict[str, Any]:
    """How the run of a case ends: its error, and its verification."""
    config, linear = RunConfig.from_dict(CASES[name].options), functional.linear
    try:
        return ended(prepare(config, group=along_mesh(group, config) if group else None))
    finally:
        functional.linear = linear  # which a case wraps


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", PARAMETERS)
def test_a_run_is_verified_or_its_bug_is_caught(case: Run) -> None:
    found = (
        in_ranks(2, __file__, f"end:{case}")[f"end:{case}"][0] if case.is_of_ranks else end(None, str(case))
    )
    error, verification, fields = found["error"], found["verification"], found["fields"]
    if case.is_right:
        assert error == ""
        assert case.words in str(verification)
    else:
        assert fields, error or verification
        assert case.words in fields["cause"]

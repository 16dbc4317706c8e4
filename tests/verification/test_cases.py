"""Each case of ``cases/`` is judged as it claims, by all ranks alike."""

from typing import Any

import data_parallel
import pytest
import torch
from catalogue import FILES, Case, cases
from helpers.engine_runs import along_mesh, ended
from helpers.in_ranks import in_ranks
from nets import Block
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

import dpexp
from dpexp.config.errors import ConfigError, VerificationError
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prediction import predict
from dpexp.engine.prepare import prepare

CASES = cases()
OFTEN = ("right_models", "right_layouts")
"""Right cases, of which a developer's tests judge the first over each layout."""
QUICK = {(case.file, case.over): name for name, case in reversed(CASES.items())}.values()
WARNINGS = "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"
"""Of the compiler itself."""


def end(group: ProcessGroup | None, name: str, count: int = 2) -> dict[str, Any]:
    """How the run of a case ends: its error, its fields, and its verification."""
    config = CASES[name].config(group.size if group else count)
    try:
        return ended(prepare(config, group=along_mesh(group, config) if group else None))
    except ConfigError as error:
        return {"error": str(error), "fields": {}, "verification": {}}


def problems(names: list[str], count: int) -> dict[str, str]:
    """What is not as these cases claim, over so many ranks or devices."""
    of_ranks = [name for name in names if CASES[name].is_of_ranks]
    ends = {name: [end(None, name, count)] for name in names if name not in of_ranks}
    if of_ranks:
        found = in_ranks(count, __file__, *(f"end:{name}" for name in of_ranks))
        ends |= dict(zip(of_ranks, found.values(), strict=True))
    texts = {name: CASES[name].problem(count, of_case) for name, of_case in ends.items()}
    return {name: text for name, text in texts.items() if text}


def marked(name: str, case: Case) -> Any:
    is_slow = case.file in OFTEN and name not in QUICK
    return pytest.param(name, marks=pytest.mark.slow if is_slow else [])


@pytest.mark.filterwarnings(*WARNINGS)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [marked(*each) for each in CASES.items() if 2 in each[1].worlds])
def test_a_case_is_judged_as_it_claims(name: str) -> None:
    assert problems([name], 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("file", "count"), [*((file, 3) for file in FILES[:5]), ("mixed", 4)])
def test_layouts_by_hand_over_more_ranks(file: str, count: int) -> None:
    names = [name for name, case in CASES.items() if case.file == file and count in case.worlds]
    assert {CASES[name].verdict for name in names} == {"right", "wrong"}
    assert problems(names, count) == {}


@pytest.mark.filterwarnings(*WARNINGS)
def test_a_compiled_submodule_is_predicted_where_it_is_placed() -> None:
    prepared = prepare(CASES["odd_models.Compiled/place"].config(1))
    rows = predict(prepared, [next(prepared.batches(0))]).shapes
    assert {row["device"] for row in rows if row["module"] == "middle"} == {"cpu:1"}


def proof(group: ProcessGroup, layout: str) -> str:
    """The cause that ``dpexp.prove`` finds in a layout along ``dp``."""
    batches = [Block().example(rows, torch.Generator().manual_seed(rows)) for rows in (12, 7)]
    mesh = init_device_mesh("cpu", (group.size,), mesh_dim_names=("dp",))
    try:
        dpexp.prove(Block(), getattr(data_parallel, layout), batches, functional.mse_loss, mesh=mesh)
    except VerificationError as error:
        return error.cause
    return ""


def test_prove_judges_a_layout_of_ranks_as_its_run_is_judged() -> None:
    right, wrong = in_ranks(2, __file__, "proof:right_mean", "proof:added_up").values()
    assert right == ["", ""]
    assert wrong[0] == wrong[1]
    assert "a sum over 2 ranks instead of the mean" in wrong[0]

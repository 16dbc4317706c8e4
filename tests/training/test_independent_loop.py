"""Runs train as an independent loop in plain PyTorch does: every layout, with all options.

The loop (``helpers/plain_loop.py``) has no code of dpexp: not its order of samples, its weights of shards,
its accumulation, its clipping or its optimizers. The losses are equal in float64, step by step.
"""

import judged
import pytest
import torch
from in_ranks import in_ranks
from judged import PROCESS, RANKS, TRAININGS, Case
from plain_loop import Loop

import dpexp

RTOL = 1e-7
"""After the updates of some steps that amplify rounding: a bug changes 1e-3 or more."""


@pytest.fixture(scope="module")
def in_process() -> list[Case]:
    return judged.cases(PROCESS)


@pytest.fixture(scope="module")
def ranks_losses(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """Of each training in ranks; one start for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPEXP_HOME", str(tmp_path_factory.mktemp("judged")))
        found: list[list[float]] = in_ranks(2, judged.__file__, "losses")["losses"][0]
    return found


def check(case: Case, found: list[float]) -> None:
    expected = torch.tensor(Loop(case.training).losses(), dtype=torch.float64)
    assert expected.isfinite().all()
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        expected,
        rtol=RTOL,
        atol=0,
        msg=lambda message: f"{case}\n{message}",
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", PROCESS)
def test_a_layout_trains_as_a_loop_in_plain_pytorch(layout: str, in_process: list[Case]) -> None:
    chosen = [case for case in in_process if case.layout == layout]
    assert {case.training.loss for case in chosen} == {training.loss for training in TRAININGS}
    for case in chosen:
        check(case, dpexp.run(case.config, quiet=True).steps["loss"])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", RANKS)
def test_ranks_train_as_a_loop_in_plain_pytorch(layout: str, ranks_losses: list[list[float]]) -> None:
    of_layout = [
        pair for pair in zip(judged.cases(RANKS), ranks_losses, strict=True) if pair[0].layout == layout
    ]
    assert {case.training.loss for case, _ in of_layout} == {training.loss for training in TRAININGS}
    for case, found in of_layout:
        check(case, found)

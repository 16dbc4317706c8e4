"""Runs train as an independent loop in plain PyTorch does: every layout, with all options.

The loop (``helpers/plain_loop.py``) has no code of dpexp: not its order of samples, its weights of shards,
its accumulation, its clipping or its optimizers. The losses are equal in float64, step by step.
"""

from pathlib import Path

import pytest
import torch
from helpers import judged
from helpers.in_ranks import in_ranks
from helpers.judged import PROCESS, RANKS, Case
from helpers.plain_loop import Loop

import dpexp

RTOL = 1e-7
"""After the updates of some steps that amplify rounding: a bug changes 1e-3 or more."""


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
def test_a_layout_trains_as_a_loop_in_plain_pytorch(layout: str, dpexp_home: Path) -> None:
    for case in judged.cases({layout: PROCESS[layout]}):
        check(case, dpexp.run(case.config, quiet=True).steps["loss"])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", RANKS)
def test_ranks_train_as_a_loop_in_plain_pytorch(layout: str) -> None:
    (by_rank,) = in_ranks(2, judged.__file__, f"losses:{layout}").values()
    for case, found in zip(judged.cases({layout: RANKS[layout]}), by_rank[0], strict=True):
        check(case, found)

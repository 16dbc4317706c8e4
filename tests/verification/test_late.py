"""A step of ranks must not depend on when its collectives end."""

from functools import cache
from typing import Any

import pytest
import torch
from in_ranks import in_ranks
from planted import Net, on_host, proven, random_batches
from torch import distributed, nn

from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks.ddp import RowWeightedSync

WRONG = {"nothing": (), "all but the first": ("third.bias",), "all but the last": ("first.weight",)}
RIGHT = ("everything", "DistributedDataParallel")


def laid_out(model: nn.Module, waits_for: str) -> Placed:
    """Averages gradients by itself; some of the all-reduces are not waited for."""
    unwaited = WRONG.get(waits_for, ()) or (dict(model.named_parameters()) if waits_for == "nothing" else ())

    def reduce(parameter: Any, waits: bool) -> None:
        parameter.grad /= distributed.get_world_size()
        work: Any = distributed.all_reduce(parameter.grad, async_op=True)
        if waits:
            work.wait()

    for name, parameter in model.named_parameters():
        waits = name not in unwaited
        parameter.register_post_accumulate_grad_hook(lambda each, waits=waits: reduce(each, waits))  # type: ignore[misc]
    return on_host(model, RowWeightedSync(distributed.get_world_size()))


def verified(group: ProcessGroup, waits_for: str) -> str:
    def lay_out(model: nn.Module) -> Placed:
        if waits_for == "DistributedDataParallel":
            wrapped = nn.parallel.DistributedDataParallel(model)
            return on_host(wrapped, RowWeightedSync(group.size))
        return laid_out(model, waits_for)

    torch.manual_seed(0)
    return proven(Net(), lay_out, random_batches(6), group=group).cause


@cache
def started() -> dict[str, list[str]]:
    return in_ranks(2, __file__, *(f"verified:{each}" for each in (*WRONG, *RIGHT)))


@pytest.mark.parametrize("waits_for", WRONG)
def test_a_result_that_nothing_waits_for_is_found(waits_for: str) -> None:
    first, other = started()[f"verified:{waits_for}"]
    assert first == other
    assert "a wait is missing" in first or "gradients" in first  # gloo may be late by itself
    for name in WRONG[waits_for]:
        assert f"the gradient {name} of rank " in first or "gradients" in first


@pytest.mark.parametrize("waits_for", RIGHT)
def test_a_layout_that_waits_has_the_same_bits_however_late_its_collectives_end(waits_for: str) -> None:
    assert started()[f"verified:{waits_for}"] == ["", ""]

"""Nested values: every tensor found, every container kept."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch

from dpexp import tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Outputs:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]


VALUE = OrderedDict(
    a=torch.zeros(2, 3),
    b=[Pair(torch.zeros(1), None), "text"],
    c=Outputs(torch.zeros(4), (torch.zeros(()), torch.zeros(5))),
)


def test_tensors_come_in_order() -> None:
    assert tensors.shapes(VALUE) == [[2, 3], [1], [4], [], [5]]


def test_mapping_keeps_containers_and_everything_else() -> None:
    ones = tensors.map_tensors(torch.ones_like, VALUE)
    assert type(ones) is OrderedDict
    assert isinstance(ones["b"][0], Pair)
    assert ones["b"][1] == "text"
    assert isinstance(ones["c"], Outputs)
    assert all(bool((tensor == 1).all()) for tensor in tensors.walk(ones))


def test_casting_leaves_ids_and_keeps_complex_numbers_complex() -> None:
    floats, ids, waves = tensors.cast(
        (torch.ones(1), torch.ones(1, dtype=torch.long), torch.ones(1) * 1j), torch.float64
    )
    assert [each.dtype for each in (floats, ids, waves)] == [torch.float64, torch.int64, torch.complex128]

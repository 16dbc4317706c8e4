"""User samples: which tensors become inputs and targets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpexp.config import ConfigError
from dpexp.data import user_samples

A, B, Y = torch.zeros(4, 5), torch.ones(4, 5), torch.full((4, 2), 2.0)


def test_dict_batches_are_joined_by_key_in_any_order() -> None:
    rows = user_samples.of_batches([{"a": A, "b": B, "y": Y}, {"b": B, "y": Y, "a": A}])
    assert len(rows) == 8
    assert all((rows[row]["a"] == 0).all() and (rows[row]["b"] == 1).all() for row in range(8))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": A, "c": B}, r"batch 1 has \['a'\], \['c'\], and batch 0 has \['a'\], \['b'\]: every batch"),
        ({"a": A}, r"batch 1 has \['a'\], and batch 0 has"),
        ((A, B), r"batch 1 has \[0\], \[1\], and batch 0 has"),
        ({"a": A, "b": 3}, r"batch 1 holds a int at \['b'\], not a tensor"),
        ({"a": A, "b": torch.ones(4, 6)}, "the batches cannot be joined, row by row"),
    ],
)
def test_batches_of_different_entries_are_refused(second: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        user_samples.of_batches([{"a": A, "b": B}, second])

"""Rows: how the single device of a run's own steps computes a batch, and the random numbers of each shard.

It computes a batch at once, unless something in the model depends on the rows beside a row, as batch norms in
training mode and random layers do: then one chunk after the other, as the layout's shards, with their states.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp.distributed.process_group import ProcessGroup
from dpexp.parallel.rng_order import draws_random_numbers
from dpexp.strategies.placed import Placed
from dpexp.verification.modes.chunks import Chunks
from dpexp.verification.modes.mode import Mode, RowsInChunks

OTHER_NUMBERS = "its random layers draw other numbers than those of a single device"

RandomStates = tuple[bytes, Any]


def random_states() -> RandomStates:
    """Of the host's generators that a model may draw from; of equal ones the next numbers are equal."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate()


def set_random_states(states: RandomStates) -> None:
    """The inverse of ``random_states``."""
    of_torch, of_python = states
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    random.setstate(of_python)


class RankStates:
    """Sets, for each chunk, the random state that its rank has at the beginning of a step."""

    def __init__(self) -> None:
        self._of_chunks: list[RandomStates] = []

    def gather(self, group: ProcessGroup) -> None:
        """Read those of all ranks; every rank must call this."""
        self._of_chunks = group.one_of_each_dp_rank(group.all_gather(random_states()))

    def __call__(self, chunk: int) -> None:
        set_random_states(self._of_chunks[chunk])

    def __deepcopy__(self, memo: dict[int, Any]) -> RankStates:
        """A copy of the single device is of the same step."""
        return self


def as_the_layout(
    model: nn.Module, placed: Placed, chunks: Chunks, states: RankStates, proven: Mode | None
) -> tuple[nn.Module, str]:
    """The model of the single device beside a layout, and why it cannot be compared with it, if it cannot.

    What a user's layout does in training mode by definition is that of the mode in which it was ``proven``.
    """
    draws = draws_random_numbers(model)
    has_batch_norms = any(isinstance(part, _BatchNorm) and part.training for part in model.modules())
    has_batch_norms = has_batch_norms and not chunks.are_synchronized
    if draws and not placed.is_on_host:
        return model, OTHER_NUMBERS
    if not chunks.splits or not (draws or has_batch_norms):
        return model, ""
    if not chunks.is_known:
        if not isinstance(proven, RowsInChunks):
            return model, "batch norms and random layers of the layout were not compared in training mode"
        if draws and proven.note:
            return model, OTHER_NUMBERS
        chunks = proven.chunks
    if draws and (chunks.are_synchronized or not chunks.draws_alike):
        return model, OTHER_NUMBERS
    return chunks.split(model, states), ""

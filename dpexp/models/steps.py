"""Steps: what the models of sequences share, the rnn and the transformer.

A sequence is ``(batch, length, width)`` values or ``(batch, length)`` ids, padded behind its own
length to the longest of the *global* batch. A replica sees only some rows, but the same padded
length; as long as it also answers with that length, its outputs can be gathered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpexp.config.features import PADDING


def inside(lengths: Tensor, length: int) -> Tensor:
    """``(batch, length)``: True for the steps before the end of each sequence."""
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)


def mean_inside(values: Tensor, lengths: Tensor | None) -> Tensor:
    """``(batch, length, width)`` -> ``(batch, width)``: the mean over each sequence's own steps."""
    if lengths is None:
        return values.mean(dim=1)
    weights = inside(lengths, values.shape[1]).to(values.dtype) / lengths.unsqueeze(1)
    return (values * weights.unsqueeze(2)).sum(dim=1)


def last(values: Tensor, lengths: Tensor | None) -> Tensor:
    """``(batch, length, width)`` -> ``(batch, width)``: each sequence's own last step."""
    if lengths is None:
        return values[:, -1]
    return values[torch.arange(len(lengths), device=lengths.device), lengths - 1]


def example(
    samples: int,
    length: int,
    width: int,
    vocabulary: int,
    out: int,
    stepwise: bool,
    generator: torch.Generator,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Random sequences of lengths from 1 to ``length``, and uniform classes: one a step, or one in all."""
    lengths = torch.randint(1, length + 1, (samples,), generator=generator)
    valid = inside(lengths, length)
    if vocabulary:
        values = torch.randint(vocabulary, (samples, length), generator=generator) * valid
    else:
        values = torch.randn(samples, length, width, generator=generator) * valid.unsqueeze(2)
    classes = torch.randint(out, (samples, length) if stepwise else (samples,), generator=generator)
    return (values, lengths), classes.masked_fill(~valid, PADDING) if stepwise else classes

"""Gathered outputs: those of all replicas and ranks, as a single device has them.

(rows, ...)   the rows of all, joined; an output without rows, which is the same on each, once
(n, rows, …)  the same in the dimension in which they add up, as of the hidden state of an RNN
scalar        replicas and ranks have one each: the sum, weighted as the losses of shards are
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import torch

from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.group import ProcessGroup
from dpexp.verification.compare import Limits, distance, parts
from dpexp.verification.recorder import Step

_Outputs = dict[str, torch.Tensor]


@contextmanager
def scalars_of_replicas() -> Iterator[None]:
    """No warning that the scalars of replicas are gathered as a vector: here they are weighted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is a tensor without dimension in every replica")
        warnings.filterwarnings("ignore", "Was asked to gather along dimension 0, but all input tensors were")
        yield


def gathered_outputs(
    found: Step, expected: Step, part: Batch, objective: Objective, group: ProcessGroup
) -> _Outputs:
    """The outputs of a layout; every rank must call this with the step of its part of the batch."""
    scalars = {name for name, tensor in expected.outputs.items() if tensor.dim() == 0}
    own = dict(found.outputs)
    for name in scalars & own.keys():
        if own[name].dim() == 1:
            with suppress(ConfigError):  # a vector, but not one scalar of each shard
                own[name] = objective.of_shards(own[name], part.targets)
    by_rank = group.all_gather((own, part.weight))
    by_dp_rank = [(outputs, weight) for outputs, weight in group.one_of_each_dp_rank(by_rank) if outputs]
    if len(by_dp_rank) < 2:
        return by_dp_rank[0][0] if by_dp_rank else {}
    names = by_dp_rank[0][0]
    return {
        name: torch.stack([outputs[name] * weight for outputs, weight in by_dp_rank if weight]).sum(0)
        if name in scalars
        else _joined([outputs[name] for outputs, _ in by_dp_rank], expected.outputs.get(name))
        for name in names
    }


def _joined(of_ranks: list[torch.Tensor], expected: torch.Tensor | None) -> torch.Tensor:
    """The rows of all ranks; of an output that has none, as a learned bias, that of the rank furthest off.

    Raises ConfigError for shapes that do not fit.
    """
    if expected is not None and all(each.shape == expected.shape for each in of_ranks):
        return max(of_ranks, key=lambda each: distance(each, expected))
    # a single device that computes chunk by chunk may have a scalar for each
    found = [each if each.dim() else each.unsqueeze(0) for each in of_ranks]
    try:
        return torch.cat(found, dim=_dimension_of_rows(found, expected))
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(each.shape)) for each in found)
        raise ConfigError(
            f"the outputs of the ranks have the shapes {shapes}, and cannot be joined. Sequences that a rank "
            "pads to its longest one need the length of the batch: pad_packed_sequence(..., total_length=...)"
        ) from error


def _dimension_of_rows(of_ranks: list[torch.Tensor], expected: torch.Tensor | None) -> int:
    """The first dimension in which the sizes of all ranks add up to that of a single device; else 0."""
    sizes = zip(*(each.shape for each in of_ranks), strict=False)
    wanted = () if expected is None else expected.shape
    return next(
        (dim for dim, (of_dim, size) in enumerate(zip(sizes, wanted, strict=False)) if sum(of_dim) == size), 0
    )


def scalars_apart(
    found: Step, expected: Step, of_shards: Iterable[str], limits: Limits, step: int
) -> dict[str, str]:
    """The scalars of shards that differ, which are not compared as outputs, with the note for each.

    A scalar of shards need not be a mean over rows. If it is the loss, it is compared as the loss: no note.
    """
    notes = dict[str, str]()
    for name in of_shards:
        wanted = expected.outputs.get(name)
        if wanted is not None and wanted.dim() == 0 and name in found.outputs:
            judged = limits.judge("outputs", step, {name: parts(found.outputs[name], wanted)})
            if judged[name].ratio > 1:
                is_loss = float(wanted) == expected.loss
                apart = f"outputs{name} is a scalar, and those of shards do not add up to it"
                notes[name] = "" if is_loss else apart
    return notes

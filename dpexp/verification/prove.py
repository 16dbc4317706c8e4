"""Prove: whether a layout that somebody wrote trains as a single device does, in their own script or test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from dpexp.config.errors import ConfigError, NotComparableError
from dpexp.config.words import plural
from dpexp.copies import check_not_scripted
from dpexp.data.objective import Objective
from dpexp.data.user_batch import as_batch, forward_signature
from dpexp.devices import HOST
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.world import as_mesh
from dpexp.strategies.custom import Parallelize, check_parameters, lay_out
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer
from dpexp.training.optimizers import OwnOptimizer
from dpexp.verification.proof import proof_of
from dpexp.verification.result import Result
from dpexp.verification.sides import Copies


def prove(
    model: nn.Module,
    parallelize: Parallelize,
    batches: Iterable[tuple[Any, Any]],
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    *,
    mesh: Any = None,
    devices: Sequence[torch.device | str] = (HOST,),
    reduction: str = "",
    accumulate: int = 1,
) -> Result:
    """Train a copy of the model in a layout beside one on a single device, in float64, a step for each batch.

    Then, as a run's verification does, an evaluation without gradients.

    ``parallelize(model, mesh)`` lays the copy out over a DeviceMesh of all ranks; if there is no mesh,
    ``parallelize(model, devices)`` over a list. Ranks along dimensions named dp* split the rows of a batch.
    ``batches`` are global ones, ``(inputs, targets)``, the same on every rank; several inputs are a tuple.
    ``loss(outputs, targets)`` is the mean over the rows, or as ``reduction`` says (rows, tokens or sum);
    without one it is what the forward returns, else a standard one. ``optimizer(parameters)`` makes the
    optimizer; without one it is SGD. It steps after ``accumulate`` batches, with the mean of their gradients.

    Returns the largest differences. Raises VerificationError, with what differs first and how;
    NotComparableError where nothing of a model can be compared; ConfigError for a layout or batches that
    are not of this form. Every rank must call it, and every rank gets the same error.
    """
    check_not_scripted(model)
    objective, forward = Objective.of(model, loss=loss, reduction=reduction), forward_signature(model)
    global_batches = [
        as_batch((inputs, targets), forward, "prove", not objective.is_given) for inputs, targets in batches
    ]
    if not global_batches:
        raise ConfigError("prove: there are no batches")
    used = tuple(map(torch.device, devices)) if mesh is None else (_device(mesh),)
    target = list(used) if mesh is None else mesh
    with _process_group(mesh) as group:

        def laid_out(copied: nn.Module) -> Placed:
            placed = lay_out(parallelize, copied, target, used, Timer(), group)
            check_parameters(model, placed, group)
            return placed

        for batch in global_batches:
            batch.check_rows(group.dp_size * max(1, len(used)))
        make = OwnOptimizer(optimizer or partial(torch.optim.SGD, lr=0.01), accumulate)
        result = proof_of(Copies(model, laid_out, global_batches, objective, make, group))
    if result.passed is None:
        raise NotComparableError(f"prove: nothing could be compared: {'; '.join(result.notes)}")
    if not result.passed:
        raise result.error_of("the layout", "; ".join(result.notes))
    return result


def _device(mesh: Any) -> torch.device:
    return HOST if mesh.device_type == "cpu" else torch.device(mesh.device_type, torch.cuda.current_device())


@contextmanager
def _process_group(mesh: Any) -> Iterator[ProcessGroup]:
    """A gloo group of all ranks, which split batches as the mesh says; without a mesh, this process."""
    if mesh is None:
        yield ProcessGroup()
        return
    names = mesh.mesh_dim_names
    if names is None or mesh.size() != distributed.get_world_size():
        raise ConfigError(
            f"prove: the mesh has dimensions {names} and {mesh.size()} of "
            f"{plural(distributed.get_world_size(), 'rank')}: "
            "name its dimensions (mesh_dim_names), and give it every rank"
        )
    group = distributed.new_group(backend="gloo")
    try:
        yield ProcessGroup(as_mesh(mesh), group)
    finally:
        distributed.destroy_process_group(group)

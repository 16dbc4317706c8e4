"""Full calls: what modules have returned on each rank, as plain tensors of the rank's rows.

rank 0   block1 -> DTensor, columns 0 to 7  | gathered by the ranks of its mesh, in one order, or by none
rank 1   block1 -> DTensor, columns 8 to 15 |
rank 2   block2 -> tensor                     stays as it is
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch

from dpexp.strategies.shards import full_output
from dpexp.verification.diagnosis.agreement import Agreement
from dpexp.verification.recorder import Calls

_Place: TypeAlias = tuple[tuple[str, int], int, int, int]
"""Name and wrappers of a module, the replica, the number of the call, and that of the output."""


def full_calls(calls: Calls, ranks: Agreement) -> Calls:
    """The calls of this rank with plain tensors; every rank must call this, in the same order.

    A DTensor that a rank of its mesh lacks, which has not called the module, cannot be gathered: that call
    has no outputs.
    """
    found = dict(_outputs(calls))
    meshes = {place: _ranks(tensor) for place, tensor in found.items() if hasattr(tensor, "device_mesh")}
    by_rank: list[Mapping[_Place, tuple[int, ...]]] = ranks.all_gather(meshes)
    for place in dict.fromkeys(place for of_rank in by_rank for place in of_rank):
        if place in meshes and all(by_rank[rank].get(place) == meshes[place] for rank in meshes[place]):
            found[place] = full_output(found[place])
    full: Calls = {}
    for key, replicas in calls.items():
        for replica, of_replica in replicas.items():
            full.setdefault(key, {})[replica] = [
                _plain([found[key, replica, call, index] for index in range(len(outputs))])
                for call, outputs in enumerate(of_replica)
            ]
    return full


def _outputs(calls: Calls) -> Iterator[tuple[_Place, torch.Tensor]]:
    for key, replicas in calls.items():
        for replica, of_replica in replicas.items():
            for call, outputs in enumerate(of_replica):
                for index, tensor in enumerate(outputs):
                    yield (key, replica, call, index), tensor


def _ranks(tensor: Any) -> tuple[int, ...]:
    """The ranks of a DTensor's mesh."""
    return tuple(tensor.device_mesh.mesh.flatten().tolist())


def _plain(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if any(hasattr(tensor, "device_mesh") for tensor in outputs):
        return []
    return [full_output(tensor) for tensor in outputs]

"""Collectives: the bytes that ranks send in what runs inside, as ``torch.distributed`` is asked for them.

The dispatcher shows every collective of a process group: those of DTensor, FSDP2, DistributedDataParallel's
reducer and a user's own. What a collective sends is that of a ring, as in ``dpexp.report``'s communication:

    all-reduce 2 (n - 1) / n of the tensor    all-gather, reduce-scatter (n - 1) / n of the full tensor
    broadcast, reduce, gather, scatter, all-to-all (n - 1) / n    send all of it
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp import tensors
from dpexp.measurement.live_storages import size as size_of
from dpexp.record.record import Row

WHAT: Mapping[str, tuple[str, int]] = {
    "allreduce": ("all-reduce", 2),
    "all_reduce": ("all-reduce", 2),
    "allgather": ("all-gather", 1),
    "all_gather": ("all-gather", 1),
    "reduce_scatter": ("reduce-scatter", 1),
    "broadcast": ("broadcast", 1),
    "alltoall": ("all-to-all", 1),
    "all_to_all": ("all-to-all", 1),
    "reduce": ("reduce", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 1),
    "send": ("send", 1),
}
"""By the beginning of an operator's name: the collective, and how often (n - 1) / n of it is sent."""


class CountCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what this rank sends in a step: ``sent`` has bytes by (collective, since backward began)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: dict[tuple[str, bool], float] = {}
        self._is_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # its collectives arrive here one by one
        self._is_backward |= torch._C._current_graph_task_id() != -1
        name = func.__name__.lstrip("_")
        found = next((value for begin, value in WHAT.items() if name.startswith(begin)), None)
        if func.namespace in ("c10d", "_c10d_functional") and found is not None:
            self._count(*found, args)
        return func(*args, **(kwargs or {}))

    def _count(self, what: str, times: int, args: Any) -> None:
        size = _group_size(args)
        if any(tensor.is_sparse for tensor in tensors.walk(args)):  # gloo gathers the rows of all ranks
            what, times = "all-gather", 1
        share = 1.0 if what == "send" else times * (size - 1) / size
        if what == "all-to-all":
            share = _share_for_others(args) or share
        key = what, self._is_backward
        self.sent[key] = self.sent.get(key, 0.0) + share * _payload(what, size, args)

    def rows(self) -> list[Row]:
        """``{what, backward, bytes}`` of each kind."""
        return [
            {"what": what, "backward": backward, "bytes": round(count)}
            for (what, backward), count in self.sent.items()
        ]


def _payload(what: str, size: int, args: Any) -> int:
    """The bytes of the tensors of one rank before, or after, a collective: the larger of both."""
    counts = [sum(map(size_of, found)) for value in args if (found := list(tensors.walk(value)))]
    if what == "all-gather" and len(counts) == 1:  # functional ones return their result
        return counts[0] * size
    return counts[-1] if what == "all-to-all" else max(counts, default=0)  # its input comes last


def _share_for_others(args: Any) -> float:
    """The share of an all-to-all with pieces of several sizes that is for other ranks; 0 of one without."""
    splits = [value for value in args if isinstance(value, list) and value and isinstance(value[0], int)]
    if not splits or not sum(splits[-1]):
        return 0.0
    own: int = splits[-1][distributed.get_rank()]
    return 1 - own / sum(splits[-1])


def _group_size(args: Any) -> int:
    """The size of the process group among the arguments: the group itself, or its name."""
    from torch.distributed import distributed_c10d

    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return int(distributed.ProcessGroup.unbox(arg).size())
        with suppress(RuntimeError, ValueError, LookupError):  # another text, as ``sum``
            if isinstance(arg, str):
                return int(resolve(arg).size())
    return distributed.get_world_size()

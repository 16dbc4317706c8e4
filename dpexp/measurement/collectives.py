"""Collectives: the bytes that ranks send in what runs inside, as ``torch.distributed`` is asked for them.

The dispatcher shows every collective of a process group: those of DTensor, FSDP2, DistributedDataParallel's
reducer and a user's own. What a collective sends is that of a ring, the bus bytes of nccl-tests, so that it
compares with copies::

    all-reduce                                each rank sends 2 (n - 1) / n of the tensor
    all-gather, reduce-scatter                each rank sends (n - 1) / n of the full tensor
    all-to-all                                each rank sends the pieces for others
    reduce, gather, scatter                   each rank sends (n - 1) / n of the tensor
    broadcast                                 each rank but the last one, before the root, passes it on
    send                                      all of it
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.distributed.group import group_of
from dpexp.measurement.observe import size_of
from dpexp.measurement.step_profile import CountingMode
from dpexp.record.record import Row
from dpexp.training.trainer import Trainer

WHAT = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "alltoall": "all-to-all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
}
"""The collective, by how an operator's name without underscores begins."""


class CountCollectives(CountingMode):  # type: ignore[no-untyped-call]
    """Counts what this rank sends, by collective, phase and receiving rank.

    ``phases`` are the names of those that run, the innermost last: see ``Timer.names``.
    """

    def __init__(self, phases: Sequence[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._phases = phases
        self._sent: dict[tuple[str, str, bool, int | None], float] = {}
        self._is_backward = False

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Count what the operator sends, if it is a collective."""
        self._is_backward |= torch._C._current_graph_task_id() != -1
        name = func.__name__.replace("_", "")
        what = next((what for begin, what in WHAT.items() if name.startswith(begin)), "")
        if func.namespace in ("c10d", "_c10d_functional") and what:
            self._count(what, args)
        return func(*args, **kwargs)

    def _count(self, what: str, args: Any) -> None:
        if any(tensor.is_sparse for tensor in tensors.walk(args)):  # gloo gathers the rows of all ranks
            what = "all-gather"
        phase = self._phases[-1] if self._phases else "backward" if self._is_backward else "forward"
        for rank, sent in _sent(what, _group(args), args).items():
            key = what, phase, self._is_backward, rank
            self._sent[key] = self._sent.get(key, 0.0) + sent

    def rows(self) -> list[Row]:
        """``{what, phase, backward, bytes}`` of each kind; ``to`` is the rank that gets a piece for it."""
        return [
            {"what": what, "phase": phase, "backward": backward, "bytes": round(count)}
            | ({} if rank is None else {"to": rank})
            for (what, phase, backward, rank), count in self._sent.items()
        ]


def _sent(what: str, group: Any, args: Any) -> dict[int | None, float]:
    """The bytes that this rank sends: by the rank that gets them for an all-to-all, else by None."""
    size, rank = group.size(), group.rank()
    sizes = [sum(map(size_of, found)) for value in args if (found := list(tensors.walk(value)))]
    payload = max(sizes, default=0)  # of the tensors before, or after it: the larger of both
    if what == "send":
        return {None: payload}
    if what == "broadcast":
        root = next((arg for arg in args if type(arg) is int), 0)
        return {None: payload * ((rank + 1) % size != root)}
    if what == "all-gather" and len(sizes) == 1:  # functional ones return their result
        payload *= size
    splits = [value for value in args if isinstance(value, list) and value and isinstance(value[0], int)]
    if what == "all-to-all" and splits and sum(splits[-1]):  # of several sizes; its input comes last
        share = sizes[-1] / sum(splits[-1])
        pieces: dict[int | None, float] = {to: share * count for to, count in enumerate(splits[-1])}
        del pieces[rank]
        return pieces if size == distributed.get_world_size() else {None: sum(pieces.values())}
    times = 2 if what == "all-reduce" else 1
    return {None: (sizes[-1] if what == "all-to-all" else payload) * times * (size - 1) / size}


def _group(args: Any) -> Any:
    """The process group among the arguments; else that of all ranks."""
    found = [group for group in map(group_of, args) if group is not None]
    return found[0] if found else distributed.group.WORLD


def counted_collectives(trainer: Trainer, batches: Mapping[int, Batch]) -> list[Row]:
    """What this rank sends in further steps, by the numbers of their batches; each size once.

    An error that every rank has is not one of the run, whose training is done: nothing is counted then.
    """
    counted, sizes = list[Row](), set[int]()
    try:
        trainer.step(next(iter(batches.values())))  # after an evaluation FSDP2 gathers some parameters twice
        for number, batch in batches.items():
            if batch.global_rows not in sizes:
                with trainer.placed.timer.names() as phases, CountCollectives(phases) as count:
                    trainer.step(batch)
                counted += [{"batch": number, **row} for row in count.rows()]
                sizes.add(batch.global_rows)
    except Exception as error:  # of any kind: a user's model may not stand to be observed
        if not trainer.group.all_failed("collectives", f"{type(error).__name__}, after {sorted(sizes)}"):
            raise
        return []
    return counted

"""Late: a step of ranks whose collectives end late, which finds results that nothing waits for.

    on time    all-reduce of a gradient, in place before the step continues
    late       all-reduce of a copy, ... a sleep, in place at ``wait`` and not before

A layout that waits for each of its collectives computes what a single device does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp import tensors

DELAYS_S = (0.16, 0.04, 0.01)
"""Of collectives that follow each other: each ends after those behind it, even if these are waited for."""

MOST = 3
"""Steps in which collectives are late, of other collectives in each."""


class LateCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, collectives with these numbers (from 0) have written their results so many seconds late.

    With ``None`` every result is in place before the step continues. ``count``: how many there were.
    """

    def __init__(self, delays: Mapping[int, float] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self._delays = 0, delays
        self._threads: list[Thread] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented  # its collectives arrive here one by one
        if func.namespace != "c10d" or kwargs or not _can_be_late(args):
            return func(*args, **(kwargs or {}))
        number, self.count = self.count, self.count + 1
        if self._delays is not None:
            return self._late(func, args, self._delays[number]) if number in self._delays else func(*args)
        returned = func(*args)
        if not func.__name__.lstrip("_").startswith(("send", "recv")):  # which may wait for the next call
            _work_of(returned).wait()
        return returned

    def _late(self, func: Any, args: Any, delay: float) -> Any:
        """The collective of copies, and a work that is done once these are in place."""
        copies = tensors.map_tensors(torch.clone, args)
        returned = func(*copies)
        work, future = _work_of(returned), torch.futures.Future[Any]()
        pairs = list(zip(tensors.walk(args), tensors.walk(copies), strict=True))
        with_tensors = [arg for arg in args if any(True for _ in tensors.walk(arg))]

        def end() -> None:
            try:
                work.wait()
                time.sleep(delay)
                with torch.no_grad():
                    for tensor, copied in pairs:
                        if not torch.equal(tensor, copied):
                            tensor.detach().copy_(copied)
                future.set_result(list(tensors.walk(with_tensors[0])))
            except Exception as error:  # of any kind: it is raised where the step waits
                future.set_exception(error)

        self._threads.append(Thread(target=end, daemon=True))
        self._threads[-1].start()
        made: Any = torch._C._distributed_c10d
        late = made._create_work_from_future(future).boxed()
        return (*with_tensors[: len(returned) - 1], late) if isinstance(returned, tuple) else late

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for thread in self._threads:
            thread.join()


def _can_be_late(args: Any) -> bool:
    """Whether they have dense tensors on the host, which nothing but a work waits for."""
    found = list(tensors.walk(args))
    return bool(found) and all(each.device.type == "cpu" and not each.is_sparse for each in found)


def _work_of(returned: Any) -> Any:
    return distributed.Work.unbox(returned[-1] if isinstance(returned, tuple) else returned)


def delays_of(count: int) -> list[dict[int, float]]:
    """Of each step with late collectives, by their numbers; where there are too many, some of them."""
    starts = list(range(0, count, len(DELAYS_S)))
    if len(starts) > MOST:
        starts = random.Random(0).sample(starts, MOST)
    return [dict(enumerate(DELAYS_S, start)) for start in starts]

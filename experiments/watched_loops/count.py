"""What a watch needs at seven billion parameters: the bytes of rank 0 of eight, counted on tensors without data.

    FakeTensorMode    operations give shapes only
    Counted           sees each storage come and go, and says of what is read that both sides are equal

python experiments/watched_loops/count.py    # a few minutes; writes its table of README.md
"""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dpexp
from dpexp import tensors
from experiments.harness import markdown
from experiments.watched_loops.measure import GPT, write

RANKS, DEVICE, GIB = 8, 80_000_000_000, 2**30
SIZE, ROWS, TOKENS = (32, 4096, 32000), 4, 1024
STEPS = 2


class Counted(TorchDispatchMode):
    """The bytes of all storages that are alive ``now``, and the ``most`` there were. A number that is read is 1.0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:  # so FSDP frees what it has gathered
            resize(storage, size)
            if storage._cdata in self._sizes:
                self._see(storage, size)
            return storage

        torch.UntypedStorage.resize_ = resized

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if any(hasattr(each, "full_tensor") for each in types):
            return NotImplemented  # a DTensor calls operations of its shards
        if func is aten._local_scalar_dense.default:
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1
        if func in (aten.equal.default, aten.allclose.default):
            return True
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor) and not each.is_meta:
                self._see(each.untyped_storage(), each.untyped_storage().nbytes())
        return found

    def _see(self, storage: Any, size: int) -> None:
        number = storage._cdata
        if number not in self._sizes:
            weakref.finalize(storage, self._forget, number)
        self.now += size - self._sizes.get(number, 0)
        self._sizes[number] = size
        self.most = max(self.most, self.now)

    def _forget(self, number: int) -> None:
        self.now -= self._sizes.pop(number, 0)


def as_if_equal(counted: Counted) -> None:
    """Let this process stand for all ranks, and take what was computed without numbers as equal."""
    new_group = distributed.new_group
    distributed.new_group = lambda ranks=None, **options: new_group(ranks, **options | {"backend": "fake"})
    torch.set_rng_state = lambda state: None
    torch.Tensor.__deepcopy__ = lambda tensor, memo: tensor.detach().clone()
    tensors.digest = lambda some: ""
    tensors.CHUNK = tensors.CHUNK_OF_DEVICE
    watch = {
        name: importlib.import_module(f"dpexp.watch.{name}") for name in ("equal", "loop", "memory", "update")
    }
    ranks = watch["loop"].LoopRanks
    ranks.meet = ranks.add_up = lambda *_: None
    ranks.all_gather = lambda ranks, value: [value] * RANKS
    ranks.together = lambda ranks, part: part()
    watch["equal"]._agree = lambda *_: True
    watch["memory"]._free = lambda *_: (DEVICE - counted.now, counted.most - counted.now)
    updated = watch["equal"].updated

    def collected(*args: Any, **options: Any) -> Any:
        gc.collect()  # parameters without data are in cycles
        return updated(*args, **options)

    watch["equal"].updated = watch["update"].updated = collected
    for module in [each for name, each in sys.modules.items() if name.startswith("dpexp.watch.")]:
        if hasattr(module, "everyone"):
            module.everyone = nullcontext
        if hasattr(module, "sampled"):
            module.sampled = lambda tensor, like=None: torch.ones(1)


def train(counted: Counted, mesh: DeviceMesh, replica: str | None) -> tuple[float, float]:
    """The bytes of the states between steps, and the most that there were; ``replica`` is None without a watch."""
    with torch.device("meta"):
        model = GPT(*SIZE)
    options: dict[str, Any] = {"weight": False, "steps": STEPS, "track": False, "replica": replica}
    watch = dpexp.watch(model, F.cross_entropy, **options) if replica else None
    loss = watch.loss if watch is not None else F.cross_entropy
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in (*model.blocks, model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    gc.freeze()
    of_steps = []
    for _ in range(STEPS):
        counted.most = counted.now
        optimizer.zero_grad()
        ids = torch.randint(SIZE[-1], (ROWS, TOKENS + 1))
        loss(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        of_steps.append(counted.most)
    if watch is not None and watch.verdict().steps != STEPS:
        raise RuntimeError(str(watch))
    return counted.now, of_steps[-1] if watch is None else max(of_steps)


def main() -> None:
    """Write the table."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    counted, rows = Counted(), []
    mesh = init_device_mesh("cpu", (RANKS,))
    as_if_equal(counted)
    with FakeTensorMode(allow_non_fake_inputs=True), counted:
        for replica in (
            None,
            "full",
            "blocks",
        ):  # without a watch first: DTensor learns the shapes of operations
            states, most = train(counted, mesh, replica)
            gc.unfreeze()
            gc.collect()
            print(replica, states / GIB, most / GIB, counted.now / GIB, flush=True)
            rows.append(
                (
                    f'`replica="{replica}"`' if replica else "not watched",
                    f"{states / GIB:.1f}",
                    f"{most / GIB:.1f}",
                )
            )
    write("count", markdown(("", "between steps, GiB", "at most, GiB"), rows))


if __name__ == "__main__":
    main()

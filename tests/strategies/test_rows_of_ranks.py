"""Ranks that compute their own rows: outputs that stay their own, and steps whose phases are timed."""

from contextlib import nullcontext
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from helpers.in_ranks import in_ranks
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.mesh import Mesh
from dpexp.config.run_config import RunConfig
from dpexp.devices import HOST
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.strategies.naive import naive_step
from dpexp.strategies.placed import full_output
from dpexp.timing import Timer


def outputs(group: ProcessGroup, mesh: str, dim: str) -> Any:
    """What a rank has of outputs (4, 2) that a mesh of this name shards along this dimension."""
    from torch.distributed.tensor import Shard, distribute_tensor

    device_mesh = ProcessGroup(Mesh.parse(mesh)).device_mesh(HOST)
    full = torch.arange(8).view(4, 2)
    return full_output(distribute_tensor(full, device_mesh, [Shard(int(dim))])).tolist()


def of_rows(group: ProcessGroup) -> Any:
    return outputs(group, "dp=2", "0")


def of_columns(group: ProcessGroup) -> Any:
    return outputs(group, "tp=2", "1")


def timed(group: ProcessGroup, strategy: str) -> float:
    """How far steps whose phases are timed, with hooks and waits of their own, are from plain ones."""
    config = RunConfig(strategy, model="blocks", batch_size=9, lr=0.1, dtype="float64")
    trained = []
    for is_timed in (False, True):
        prepared = prepare(config, group=group, one_batch=False)
        timer = Timer(prepared.selection.used)
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
        trainer = prepared.trainer(placed)
        for batch in islice(prepared.local_batches(0), 3):
            with timer.step() if is_timed else nullcontext():
                trainer.step(batch)
        trained.append(trainer.complete_parameters())
    assert timer.phases
    return max(float((trained[0][name] - tensor).abs().max()) for name, tensor in trained[1].items())


def naive(group: ProcessGroup) -> float:
    """How far the naive step over ranks is from ddp, after batches that the ranks cannot split evenly."""
    prepared = prepare(RunConfig("ddp", model="blocks", batch_size=9, lr=0.1), group=group)
    model, loss = deepcopy(prepared.model), prepared.data.objective.loss
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = prepared.trainer(prepared.strategy.place(prepared.model, prepared.selection.used, Timer()))
    for batch in islice(prepared.batches(0), 3):
        naive_step(model, loss, optimizer, batch.inputs[0], batch.targets)
        trainer.step(prepared.part(batch))
    trained = trainer.complete_parameters()
    return max(float((trained[name] - tensor).abs().max()) for name, tensor in model.named_parameters())


def refused(group: ProcessGroup, layout: str) -> str:
    """Why SyncBatchNorm, in the model or made by a layout, is refused on the host before a run begins."""
    model, function = (
        ("odd_models:Synchronized", "") if layout == "ddp" else ("blocks", f"{__file__}:converted")
    )
    options = {"layout": function, "mesh": "dp=2"} if function else {}
    try:
        prepare(RunConfig(layout, model=model, options=options), group=group)
    except ConfigError as error:
        return str(error)
    return ""


def converted(model: nn.Module, mesh: Any) -> nn.Module:
    return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(model, nn.BatchNorm1d(20)))  # type: ignore[no-any-return]


def test_ranks_compute_their_rows() -> None:
    strategies = ("ddp", "fsdp")
    found = in_ranks(
        2,
        __file__,
        "refused:ddp",
        "refused:custom",
        "of_rows",
        "of_columns",
        "naive",
        *(f"timed:{strategy}" for strategy in strategies),
    )
    for strategy in strategies:
        assert max(found[f"timed:{strategy}"]) < 1e-14, strategy
    assert found["naive"] == [0.0, 0.0], "to the bit"
    assert found["of_rows"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], "each rank's own, for its own targets"
    assert found["of_columns"] == [[[0, 1], [2, 3], [4, 5], [6, 7]]] * 2, "all columns of the same rows"
    for layout, name in (("ddp", "middle"), ("custom", "1")):
        for message in found[f"refused:{layout}"]:
            assert f"SyncBatchNorm ({name}) computes on accelerators only" in message, layout

"""The steps of a plan, without data, need what the same steps of real tensors need, to the byte.

Both are followed alike. Ranks are two real processes on one side, and absent ones on the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.engine_runs import along_mesh
from helpers.in_ranks import in_ranks
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import _disable_current_modes

from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prediction import model_without_data, without_the_log_of_failures
from dpexp.engine.prepare import prepare
from dpexp.engine.run_globals import run_globals
from dpexp.models.embeddings import DLRM
from dpexp.models.sequences import Transformer
from dpexp.plan.kernels import without_onednn
from dpexp.plan.layout import laid_out, placed_without_data
from dpexp.plan.memory import StorageLog
from dpexp.plan.steps import Needed, Steps
from dpexp.timing import Timer

Figures = dict[str, Any]
Example = tuple[Tensor, Tensor]


# --- five models, which draw random numbers, so that replicas on a CPU compute one after another ---


class Dense(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 34), nn.ReLU(), nn.Dropout(0.3), nn.Linear(34, 7))

    def example(self, samples: int, generator: torch.Generator) -> Example:
        return torch.randn(samples, 16, generator=generator), torch.arange(samples) % 3


class Images(nn.Sequential):
    """It has buffers."""

    def __init__(self) -> None:
        convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        super().__init__(convolution, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 10))

    def example(self, samples: int, generator: torch.Generator) -> Example:
        return torch.randn(samples, 3, 8, 8, generator=generator), torch.arange(samples) % 3


class Text(Transformer):
    """Its table is its head."""

    def __init__(self) -> None:
        super().__init__(dim=16, heads=2, vocabulary=50, out=50)
        self.head.weight = self.embedding.weight  # type: ignore[assignment]
        for part in self.encoder.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.1


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 3)

    def forward(self, steps: Tensor) -> Tensor:
        return self.head(self.cells(steps)[0][:, -1])  # type: ignore[no-any-return]

    def example(self, samples: int, generator: torch.Generator) -> Example:
        return torch.randn(samples, 5, 6, generator=generator), torch.arange(samples) % 3


class Clicks(DLRM):
    def __init__(self) -> None:
        super().__init__(rows=50)
        self.bottom.append(nn.Dropout(0.1))


MODELS: dict[str, dict[str, Any]] = {
    "Dense": {"optimizer": "momentum", "autocast": "bfloat16"},
    "Images": {"optimizer": "adamw"},
    "Text": {"optimizer": "adamw", "accumulate": 2},
    "Recurrent": {"optimizer": "rmsprop", "clip_norm": 0.1},
    "Clicks": {"optimizer": "sgd"},
}


# --- layouts ---


def tensor_parallel(model: Dense, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "3": RowwiseParallel()})


def two_dimensional(model: Dense, mesh: Any) -> nn.Module:
    fully_shard(tensor_parallel(model, mesh), mesh=mesh["dp"])
    return model


def of_layers(model: Text, mesh: Any) -> nn.Module:
    for layer in model.encoder.layers:
        parallelize_module(layer, mesh["tp"], {"linear1": ColwiseParallel(), "linear2": RowwiseParallel()})
    return model


def custom(function: str, mesh: str) -> dict[str, Any]:
    return {"strategy": "custom", "layout": f"{__file__}:{function}", "mesh": mesh}


IN_ONE_PROCESS: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single"},
    "single, checkpoint": {"strategy": "single", "checkpoint": True},
    "whole": {"strategy": "whole", "virtual": 2},
}
HYBRID: dict[str, dict[str, Any]] = {
    "hybrid": {"strategy": "hybrid", "virtual": 1},
    "hybrid, sparse": {"strategy": "hybrid", "virtual": 1, "sparse": True},
}
OVER_RANKS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"ddp {model}": (model, {"strategy": "ddp"}) for model in MODELS},
    **{f"fsdp {model}": (model, {"strategy": "fsdp"}) for model in MODELS},
    "ddp, checkpoint": ("Text", {"strategy": "ddp", "checkpoint": True}),
    "fsdp, checkpoint": ("Text", {"strategy": "fsdp", "checkpoint": True}),
    "tensor parallel": ("Dense", custom("tensor_parallel", "tp=2")),
    "tensor parallel layers": ("Text", custom("of_layers", "tp=2")),
    "two dimensions": ("Dense", custom("two_dimensional", "dp=1,tp=2")),
}


def config_of(model: str, layout: dict[str, Any]) -> RunConfig:
    shared = {"model": f"{__file__}:{model}", "batch_size": 12, "check": False, "steps": 4}
    return RunConfig.from_dict({**shared, **MODELS[model], **layout})


# --- both sides ---


def figures(needed: Needed) -> Figures:
    """What must be equal, as JSON has it."""
    peaks = {name: asdict(peak) for name, peak in needed.peaks.items()}
    flops = {" ".join(key): count for key, count in needed.flops.items()}
    return {"peaks": peaks, "sent": needed.sent, "flops": flops, "uncounted": list(needed.uncounted)}


def with_data(config: RunConfig, group: ProcessGroup | None = None) -> Figures:
    with run_globals(config), without_onednn():
        prepared = prepare(config, one_batch=False, group=group)
        placed = prepared.strategy.lay_out(prepared.model, prepared.selection.used, Timer())
        batch = next(prepared.local_batches(0)).copied()  # a part of a batch on a host keeps all of it
        steps = Steps(prepared, placed, is_accelerator=False)
        if group is not None:
            steps.take(batch)  # DistributedDataParallel tells the ranks once how it has built buckets
        return figures(steps.take(batch))


def without_data(config: RunConfig) -> Figures:
    """Of one process whose devices share the host's memory, as those that a run emulates do."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with run_globals(config), without_onednn():
        prepared = prepare(config, one_batch=False)
        model = model_without_data(prepared.model, mode)
        placed = placed_without_data(prepared, model, prepared.selection.used, mode)
        batch = next(prepared.local_batches(0)).changed(mode.from_tensor)
        with mode, without_the_log_of_failures():
            return figures(Steps(prepared, placed, is_accelerator=False).take(batch))


def over_absent_ranks(config: RunConfig) -> Figures:
    with laid_out(config, {}, 2, is_accelerator=False) as layout:
        return figures(layout.take())


def over_ranks(group: ProcessGroup, text: str) -> Figures:
    config = config_of(*json.loads(text))
    along = along_mesh(group, config)  # which starts threads of gloo
    with _without_gloo():
        return with_data(config, along)


@contextmanager
def _without_gloo() -> Iterator[None]:
    """Gloo reduces and scatters by an all-reduce of a copy, which is not followed inside.

    After a wait one of its threads may hold the tensors a little longer: they would be freed at any time.
    """
    wait: Any = distributed.Work.wait
    counted = StorageLog.counted

    def waited(*args: Any) -> Any:
        with _disable_current_modes():
            found = wait(*args)
        _until_asleep(threads)
        return found

    def followed(*args: Any) -> Any:
        _until_asleep(threads)
        return counted(*args)

    with ExitStack() as stack:
        files = [
            stack.enter_context(open(each / "stat", "rb", 0)) for each in Path("/proc/self/task").iterdir()
        ]
        threads = [each for each in files if b"gloo" in each.read()]
        assert threads
        stack.enter_context(patch.object(distributed.Work, "wait", waited))
        stack.enter_context(patch.object(StorageLog, "counted", followed))
        yield


def _until_asleep(threads: list[FileIO]) -> None:
    """Threads of gloo that have let go of their tensors sleep, in wait for the next ones."""
    while any(b") S " not in os.pread(each.fileno(), 100, 0) for each in threads):
        os.sched_yield()


# --- tests ---


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", IN_ONE_PROCESS)
def test_a_plan_in_one_process_is_equal_to_real_steps(layout: str, model: str) -> None:
    config = config_of(model, IN_ONE_PROCESS[layout])
    assert without_data(config) == with_data(config)


@pytest.mark.parametrize("layout", HYBRID)
def test_a_plan_of_tables_on_the_host_is_equal_to_real_steps(layout: str) -> None:
    config = config_of("Clicks", HYBRID[layout])
    assert without_data(config) == with_data(config)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of the view that a linear layer returns
def test_plans_over_absent_ranks_are_equal_to_two_real_ranks() -> None:
    cases = {name: f"over_ranks:{json.dumps(case)}" for name, case in OVER_RANKS.items()}
    found = in_ranks(2, __file__, *cases.values())
    real = {name: found[case][0] for name, case in cases.items()}
    assert {name: over_absent_ranks(config_of(*case)) for name, case in OVER_RANKS.items()} == real


# --- devices of their own: what they have that emulated ones share ---

FLOAT = 4


def test_replicas_on_devices_of_their_own_have_copies_of_parameters_and_their_rows() -> None:
    parameters = FLOAT * (34 * 16 + 34 + 7 * 34 + 7)
    config = config_of("Dense", {"strategy": "whole", "autocast": ""})
    with laid_out(config, {}, 2, is_accelerator=False) as layout:
        peaks = layout.take().peaks
        sent = layout.copied_bytes()
    assert peaks["cpu"].bytes == 12 * (16 * FLOAT + 8), "the host has the batch"
    first, second = peaks["cpu:0"], peaks["cpu:1"]
    assert first.kinds["parameters"] == first.kinds["optimizer"] == parameters
    assert (second.kinds["parameters"], second.kinds["optimizer"], second.kinds["inputs"]) == (0, 0, 0)
    rows = 6
    # the copies; at the end of its forward inputs, what ReLU and dropout return, a mask as floats, outputs
    kept = rows * FLOAT * (16 + 34 + 34 + 34 + 7)
    assert second.bytes == parameters + kept
    assert sent["cpu:0"]["replicate"] == sent["cpu:1"]["replicate backward"] == parameters
    assert sent["cpu:0"]["scatter"] == rows * 16 * FLOAT


def test_a_table_on_the_host_needs_nothing_of_the_accelerator_but_its_vectors() -> None:
    tables, looked_up = FLOAT * 8 * 50 * 16, 12 * 8 * 16 * FLOAT
    model = sum(each.numel() * FLOAT for each in Clicks().parameters())
    for is_sparse in (False, True):
        config = config_of("Clicks", {"strategy": "hybrid", "sparse": is_sparse})
        with laid_out(config, {}, 1, is_accelerator=False) as layout:
            peaks = layout.take().peaks
            sent = layout.copied_bytes()
        host, accelerator = peaks["cpu"], peaks["cpu:0"]
        assert host.kinds["parameters"] == tables
        assert accelerator.kinds["parameters"] == model - tables
        assert host.kinds["gradients"] == (0 if is_sparse else tables)
        assert sent == {"cpu": {"transfer": looked_up}, "cpu:0": {"transfer backward": looked_up}}

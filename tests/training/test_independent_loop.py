"""Runs train as an independent loop in plain PyTorch does: every layout, with all options.

The loop (``helpers/plain_loop.py``) has no code of dpexp: not its order of samples, its weights of shards,
its accumulation, its clipping or its optimizers. The losses are equal in float64, step by step.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import plain_loop
from helpers.command_lines import HELPERS
from helpers.in_ranks import records
from helpers.plain_loop import BATCH, BY_NUMBERS, OPTIMIZERS, STEPS, Loop, Training

import dpexp
from dpexp.config.run_config import RunConfig

RTOL = 1e-7
"""After the updates of some steps that amplify rounding: a bug changes 1e-3 or more."""
FILE, LAYOUTS = plain_loop.__file__, f"{HELPERS}/layouts.py"
PROCESS: dict[str, dict[str, Any]] = {
    "single": {"devices": "cpu"},
    "whole": {"virtual": 4},
    "block": {"virtual": 2, "block": ["embedding", "block*"]},
    "functional": {"virtual": 3},
    "hybrid": {"virtual": 1},
    "hybrid of replicas": {"virtual": 3},
    "hybrid sparse": {"virtual": 1, "sparse": True},
    "place": {"virtual": 2, "place": ["block1=cpu:1", "block2=cpu"]},
    "custom": {"virtual": 3, "layout": f"{LAYOUTS}:replicated"},
}
"""Layouts of one process, by their strategy and what is special in them."""
RANKS: dict[str, dict[str, Any]] = {
    "ddp": {"bucket_mb": 0.001},
    "ddp unused": {"find_unused": True},
    "fsdp": {"block": ["block*", "embedding"]},
    "custom": {"layout": f"{LAYOUTS}:tensor_parallel", "mesh": "tp=2"},
    "custom of rows": {"layout": f"{LAYOUTS}:sharded", "mesh": "dp=2"},
}
"""Layouts of two ranks."""
WITH_ALL = ("single", "whole", "ddp", "fsdp")
"""The others train with three optimizers: their gradients come together as in one of these, or are sparse."""
OPTIMIZERS_OF_OTHERS = ("sgd", "adam", "adagrad")

TRAININGS = (
    Training("mse", "sgd", accumulate=2, clip_norm=0.05, warmup=3),
    Training("huber", "adam", accumulate=2),
    Training("sum", "adagrad", clip_norm=0.05),
    Training("l1 sum", "sgd", warmup=3),
    Training("classes", "adam", clip_norm=0.05, warmup=3),
    Training("tokens", "adam", clip_norm=1e6),
    Training("weighted", "adagrad", warmup=3),
    Training("inside", "sgd", clip_norm=0.05),
    Training("mse", "momentum", accumulate=2, warmup=3),
    Training("sum", "adamw", clip_norm=0.05),
    Training("tokens", "adamax", warmup=3),
    Training("huber", "nadam", accumulate=2, clip_norm=0.05),
    Training("classes", "radam", accumulate=2),
    Training("weighted", "adadelta", clip_norm=0.05),
    Training("inside", "rmsprop", warmup=3),
)
"""Each value of an option, and each loss with an optimizer that sparse tables have."""
LOSSES: dict[str, dict[str, str]] = {
    "huber": {"loss": "huber:delta=0.3"},
    "sum": {"reduction": "sum"},
    "l1 sum": {"loss": "l1", "reduction": "sum"},
    "tokens": {"reduction": "tokens"},
    "weighted": {"loss": f"{FILE}:weighted"},
    "inside": {"reduction": "tokens"},
}


def trainings(layout: str, options: dict[str, Any]) -> Iterator[tuple[Training, dict[str, Any]]]:
    """The trainings of a layout, each with the options of its run."""
    for each in TRAININGS:
        if layout in WITH_ALL or each.optimizer in OPTIMIZERS_OF_OTHERS:
            training = replace(each, sparse=options.get("sparse", False))
            yield training, {"strategy": layout.split(maxsplit=1)[0], **options_of(training), **options}


def options_of(training: Training) -> dict[str, Any]:
    """The options of a run that trains so."""
    values, by_classes = OPTIMIZERS[training.optimizer].options, training.loss not in BY_NUMBERS
    fixed: dict[str, Any] = {"batch_size": BATCH, "steps": STEPS, "phase_steps": 0, "threads": 1}
    return {
        "model": f"{FILE}:{'Inside' if training.loss == 'inside' else 'Net'}",
        "data": f"{FILE}:data:classes={by_classes}",
        "optimizer": training.optimizer + (f":{values}" if values else ""),
        "lr": training.lr,
        "accumulate": training.accumulate,
        "clip_norm": training.clip_norm,
        "warmup": training.warmup,
        "dtype": "float64",
        "check": False,
        "track": False,
        **fixed,
        **LOSSES.get(training.loss, {}),
    }


def check(training: Training, losses: list[float]) -> None:
    expected = torch.tensor(Loop(training).losses(), dtype=torch.float64)
    assert expected.isfinite().all()
    torch.testing.assert_close(
        torch.tensor(losses, dtype=torch.float64),
        expected,
        rtol=RTOL,
        atol=0,
        msg=lambda message: f"{training}\n{message}",
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", PROCESS)
def test_a_layout_trains_as_a_loop_in_plain_pytorch(layout: str, dpexp_home: Path) -> None:
    for training, options in trainings(layout, PROCESS[layout]):
        check(training, dpexp.run(RunConfig.from_dict(options), quiet=True).steps["loss"])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", RANKS)
def test_ranks_train_as_a_loop_in_plain_pytorch(layout: str) -> None:
    of_layout, options = zip(*trainings(layout, RANKS[layout]), strict=True)
    for training, record in zip(of_layout, records(2, *options), strict=True):
        check(training, record.steps["loss"])

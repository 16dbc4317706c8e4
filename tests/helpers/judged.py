"""Runs that a loop in plain PyTorch judges: each layout, with trainings that cover all options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from helpers import plain_loop
from helpers.command_lines import HELPERS
from helpers.engine_runs import along_mesh, recorded
from helpers.plain_loop import BATCH, BY_NUMBERS, OPTIMIZERS, STEPS, Training

FILE = Path(plain_loop.__file__)
LAYOUT = f"{HELPERS}/layouts.py"
SPARSE = {"sparse": True}
PROCESS: dict[str, dict[str, Any]] = {
    "single": {"devices": "cpu"},
    "whole": {"virtual": 4},
    "block": {"virtual": 2, "block": ("embedding", "block*")},
    "functional": {"virtual": 3},
    "hybrid": {"virtual": 1},
    "hybrid of replicas": {"virtual": 3},
    "hybrid sparse": {"virtual": 1, **SPARSE},
    "place": {"virtual": 2, "place": ("block1=cpu:1", "block2=cpu")},
    "custom": {"virtual": 3, "layout": f"{LAYOUT}:replicated"},
}
"""Layouts of one process, by their strategy and what is special in them."""

RANKS: dict[str, dict[str, Any]] = {
    "ddp": {"bucket_mb": 0.001},
    "ddp unused": {"find_unused": True},
    "fsdp": {"block": ("block*", "embedding")},
    "hybrid": {},
    "hybrid sparse of ranks": {**SPARSE},
    "custom": {"layout": f"{LAYOUT}:tensor_parallel", "mesh": "tp=2"},
    "custom of rows": {"layout": f"{LAYOUT}:sharded", "mesh": "dp=2"},
}
"""Layouts of two ranks."""
FEW = ("functional", "hybrid of replicas", "custom", "ddp unused", "custom of rows")
"""Those whose gradients come together as in another: they train with some optimizers."""
FOR_SPARSE = ("sgd", "adam", "adagrad")

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


@dataclass(frozen=True)
class Case:
    """A run and what it must compute."""

    layout: str
    options: dict[str, Any]
    training: Training

    @property
    def config(self) -> RunConfig:
        training = self.training
        options, by_classes = OPTIMIZERS[training.optimizer].options, training.loss not in BY_NUMBERS
        values: dict[str, Any] = {
            "strategy": self.layout.split()[0],
            "model": f"{FILE}:{'Inside' if training.loss == 'inside' else 'Net'}",
            "data": f"{FILE}:data:classes={by_classes}",
            "optimizer": training.optimizer + (f":{options}" if options else ""),
            "lr": training.lr,
            "accumulate": training.accumulate,
            "clip_norm": training.clip_norm,
            "warmup": training.warmup,
            "dtype": "float64",
        }
        fixed: dict[str, Any] = {"batch_size": BATCH, "steps": STEPS, "phase_steps": 0, "threads": 1}
        fixed |= {"check": False, "track": False}
        return RunConfig.from_dict(values | fixed | LOSSES.get(training.loss, {}) | self.options)


def cases(layouts: dict[str, dict[str, Any]]) -> list[Case]:
    """The trainings of each layout."""
    return [
        Case(layout, options, replace(training, sparse=options.get("sparse", False)))
        for layout, options in layouts.items()
        for training in TRAININGS
        if training.optimizer in FOR_SPARSE or not (options.get("sparse") or layout in FEW)
    ]


def losses(group: ProcessGroup, layout: str) -> list[list[float]]:
    """Case of ``in_ranks``: the losses of the trainings in ranks; empty ones of ranks but the first."""
    found = []
    for number, case in enumerate(cases({layout: RANKS[layout]})):
        own = along_mesh(group, case.config)
        found.append(recorded(home(), case.config, f"judged{number}", group=own).steps["loss"])
    return found

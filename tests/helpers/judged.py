"""Runs that a loop in plain PyTorch judges: each layout, with trainings that cover all pairs of options."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plain_loop
from command_lines import HELPERS
from plain_loop import BATCH, BY_NUMBERS, OPTIMIZERS, STEPS, Training

from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.passes import execute
from dpexp.engine.prepare import prepare
from dpexp.engine.progress import ProgressBar
from dpexp.record.journal import Journal, NullJournal
from dpexp.record.record import Record

FILE = Path(plain_loop.__file__)
LAYOUT = f"{HELPERS}/layouts.py"
SPARSE = {"sparse": True}
PROCESS: dict[str, dict[str, Any]] = {
    "single": {"devices": "cpu"},
    "whole": {"virtual": 4, "output_device": "cpu:1"},
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
    "hybrid sharded": {**SPARSE, "shard_embedding": True},
    "custom": {"layout": f"{LAYOUT}:tensor_parallel", "mesh": "tp=2"},
    "custom of rows": {"layout": f"{LAYOUT}:sharded", "mesh": "dp=2"},
}
"""Layouts of two ranks."""
FEW = ("ddp unused", "custom of rows")
"""Those whose gradients come together as in another: they train with some optimizers."""
FOR_SPARSE = ("sgd", "adam", "adagrad")

AUTOCAST: dict[str, tuple[tuple[str, int], ...]] = {
    "single": (),
    "whole": (("", 4),),
    "block": (("embedding", 2), ("block1", 2), ("block2", 2)),
    "functional": (("", 3),),
    "hybrid of replicas": (("", 3),),
    "place": (),
}
"""Layouts that are judged under autocast to bfloat16, and which of their modules have how many replicas."""
MIXED = (
    Training("mse", "momentum", autocast=True),
    Training("tokens", "adam", clip_norm=0.05, autocast=True),
    Training("huber", "sgd", accumulate=2, autocast=True),
)

OPTIONS: dict[str, tuple[Any, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "loss": ("mse", "huber", "sum", "l1 sum", "classes", "tokens", "weighted", "inside"),
    "accumulate": (1, 2),
    "clip_norm": (None, 0.05, 1e6),
    "warmup": (0, 3),
}
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
            **({"autocast": "bfloat16", "dtype": "float32"} if training.autocast else {"dtype": "float64"}),
        }
        fixed: dict[str, Any] = {"batch_size": BATCH, "steps": STEPS, "phase_steps": 0, "threads": 1}
        fixed |= {"check": False, "track": False}
        return RunConfig.from_dict(values | fixed | LOSSES.get(training.loss, {}) | self.options)


def possible(layout: str, options: dict[str, Any], values: dict[str, Any]) -> bool:
    """Whether a layout with these options has such a training: others are refused, or left out."""
    by_tokens = values["loss"] in ("tokens", "weighted", "inside")
    if values["accumulate"] > 1 and by_tokens:
        return False
    return not (options.get("sparse") or layout in FEW) or values["optimizer"] in FOR_SPARSE


def cases(layouts: dict[str, dict[str, Any]]) -> list[Case]:
    """Trainings in which every possible pair occurs of a layout and a value of an option.

    Of one process also every possible pair of two options' values.
    """
    every = [
        {"layout": layout} | dict(zip(OPTIONS, values, strict=True))
        for layout, values in itertools.product(layouts, itertools.product(*OPTIONS.values()))
        if possible(layout, layouts[layout], dict(zip(OPTIONS, values, strict=True)))
    ]
    bits: dict[Any, int] = {}
    pairs = [_pairs(values, bits, of_options=layouts is PROCESS) for values in every]
    missing, found = (1 << len(bits)) - 1, []
    while missing:
        best = max(range(len(every)), key=lambda number: (missing & pairs[number]).bit_count())
        missing &= ~pairs[best]
        found.append(every[best])
    return [_case(layouts, **values) for values in found]


def under_autocast(layout: str) -> list[Case]:
    """Trainings of a layout of one process under autocast."""
    trainings = (replace(training, pieces=AUTOCAST[layout]) for training in MIXED)
    return [Case(layout, PROCESS[layout], training) for training in trainings]


def _pairs(values: dict[str, Any], bits: dict[Any, int], *, of_options: bool) -> int:
    """The pairs of a training as bits, which are numbered as they occur."""
    pairs = itertools.combinations(values.items(), 2)
    return sum(
        1 << bits.setdefault(pair, len(bits)) for pair in pairs if of_options or pair[0][0] == "layout"
    )


def _case(layouts: dict[str, dict[str, Any]], layout: str, **values: Any) -> Case:
    options = layouts[layout]
    return Case(layout, options, Training(**values, sparse=options.get("sparse", False)))


def losses(group: ProcessGroup) -> list[list[float]]:
    """Case of ``in_ranks``: the losses of the trainings in ranks; empty ones of ranks but the first."""
    found = []
    for number, case in enumerate(cases(RANKS)):
        options = case.config.options
        assert isinstance(options, RankOptions)
        prepared = prepare(case.config, group=ProcessGroup(options.mesh_of(group.size)))
        with Journal(home() / "runs", f"judged{number}") if group.is_first else NullJournal() as journal:
            execute(prepared, journal, ProgressBar(hidden=True))
        found.append(Record.load(journal.folder).steps["loss"] if group.is_first else [])
    return found

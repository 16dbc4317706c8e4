"""Steps of a hybrid, serial or pipelined, that are compared to the bit."""

from collections.abc import Iterable
from typing import Any

import torch

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import Prepared, prepare
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer

ROWS, DIM = 20, 4


def config(**values: Any) -> RunConfig:
    model = f"embedding:rows={ROWS},dim={DIM}"
    return RunConfig.from_dict(
        {"strategy": "hybrid", "sparse": True, "virtual": 1, "threads": 1, "model": model, "warmup": 0}
        | values
    )


def trainer(**values: Any) -> Trainer:
    return prepared_trainer(**values)[1]


def prepared_trainer(**values: Any) -> tuple[Prepared, Trainer]:
    prepared = prepare(config(**values))
    used = prepared.selection.used
    return prepared, prepared.trainer(prepared.strategy.place(prepared.model, used, Timer(used)))


def trained(steps: Trainer, batches: Iterable[Batch]) -> list[float]:
    with steps.ahead(iter(batches)) as ahead:
        return [steps.step(each).item() for each in ahead]


def assert_same_bits(found: Trainer, expected: Trainer) -> None:
    weights = found.full_parameters()
    for name, tensor in expected.full_parameters().items():
        assert torch.equal(weights[name], tensor), name

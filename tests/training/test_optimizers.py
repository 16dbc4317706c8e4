"""Optimizers: every one trains every layout as a single device, sparse tables too."""

import subprocess
import sys
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_lines import PATIENCE_S, ROOT
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.timing import Timer
from dpexp.training.optimizer_state import HiddenStateError, attributes, write_attributes
from dpexp.training.trainer import Trainer

TABLE = "embedding:rows=40,dim=4"
BY_HAND = f"{__file__}:momentum_by_hand"


def momentum_by_hand(parameters: list[nn.Parameter], factor: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=factor)


def without_parameters(lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr)


def config(optimizer: str, strategy: str = "whole", **values: Any) -> RunConfig:
    return RunConfig.from_dict({"strategy": strategy, "optimizer": optimizer, "threads": 1} | values)


def hybrid(optimizer: str, **values: Any) -> RunConfig:
    return config(optimizer, "hybrid", **{"sparse": True, "model": TABLE} | values)


def trainer(config: RunConfig, steps: int = 0) -> Trainer:
    """The trainer of a run after so many steps."""
    prepared = prepare(config, one_batch=False)
    found = prepared.trainer(prepared.strategy.place(prepared.model, prepared.selection.used, Timer()))
    for batch in islice(prepared.endless_batches(), steps):
        found.step(batch)
    return found


class Langevin(torch.optim.SGD):
    """Adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for each in self.param_groups[0]["params"]:
            each.add_(torch.randn_like(each), alpha=0.01)


class Sharpness(torch.optim.SGD):
    """Computes the loss again."""

    def step(self, closure: Any = None) -> None:
        assert closure is not None, "it requires a closure"


# --- every optimizer, every layout ----------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam:amsgrad=True", BY_HAND])
def test_every_optimizer_trains_a_layout_as_a_single_device(optimizer: str) -> None:
    result = verify(prepare(config(optimizer, "hybrid", model=TABLE, clip_norm=0.02, virtual=2)))
    assert result.passed, result.cause
    assert result.worst["parameters"].error < 1e-12
    assert (result.error("optimizer") is None) == (optimizer == "sgd")


def test_an_optimizer_of_the_users_may_draw_random_numbers() -> None:
    result = verify(prepare(config(f"{__file__}:Langevin", virtual=2)))
    assert result.passed, [result.cause, *result.notes]
    assert result.worst["parameters"].limit < 1e-11, "noise is no rounding"


def test_rounding_of_a_gradient_that_is_zero_is_not_taken_for_a_wrong_layout() -> None:
    """The bias of an attention's keys has no effect: Adagrad takes full steps along its rounding errors."""
    result = verify(prepare(config("adagrad", model="transformer:depth=1,dim=8,heads=2", batch_size=7)))
    assert result.passed, result.cause


def test_tables_get_the_variant_and_everything_else_the_optimizer() -> None:
    expected = {"sgd": "SGD", "adam": "SparseAdam", "adagrad": "Adagrad"}
    for optimizer, variant in expected.items():
        made = trainer(hybrid(optimizer, virtual=1)).optimizers
        assert made is not None
        assert [type(each).__name__ for each in made.members][-1] == variant
        is_one = optimizer != "adam"
        assert len(made.members) == 2 - is_one, "a step of each costs as much as a small table's"


# --- what is refused, before a run opens ----------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("adamw", ["--optimizer adamw", "sparse gradients of embedding", "adamw changes every row"]),
        ("sgd:momentum=0.5", ["--optimizer sgd:momentum=0.5 cannot take the sparse gradients"]),
        ("adam:weight_decay=0.1", ["SparseAdam takes no option 'weight_decay'"]),
        ("adagrod", ["unknown optimizer 'adagrod'", "did you mean 'adagrad'?"]),
        ("adam:betas=(2,3)", ["--optimizer adam:betas=(2,3)", "beta"]),
        ("adam:lr=0.1", ["give the learning rate as --lr"]),
        ("torch.nn:Linear:in_features=1,out_features=1", ["torch.nn:Linear"]),
        (f"{__file__}:Sharpness", ["requires a closure", "dpexp calls step() without a closure"]),
        (f"{__file__}:without_parameters", [":without_parameters takes no list of parameters to train"]),
    ],
)
def test_an_optimizer_that_cannot_train_the_model_is_refused_by_name(
    optimizer: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(hybrid(optimizer))
    assert all(word in str(caught.value) for word in words), caught.value


def test_batches_of_a_loss_by_tokens_do_not_accumulate() -> None:
    values: dict[str, Any] = {"accumulate": 2, "batch_size": 10, "reduction": "tokens"}
    with pytest.raises(ConfigError, match=r"--accumulate 2 counts batches alike, .* use --batch-size 20"):
        prepare(hybrid("sgd", **values))
    prepare(hybrid("sgd", **values | {"reduction": "sum"}))


# --- what they keep in attributes, and import -------------------------------------------------------


class Kept(torch.optim.SGD):
    """Keeps a list of numbers, and a number in the closure of a hook."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.recent: deque[float] = deque(maxlen=2)
        hooked = 0

        def hook(*_: Any) -> None:
            nonlocal hooked
            hooked += 2
            self.recent.append(hooked)

        self.register_step_post_hook(hook)


def test_attributes_are_those_of_another_optimizer_once_they_are_written() -> None:
    trained, fresh = (Kept([nn.Parameter(torch.ones(3))]) for _ in range(2))
    for _ in range(3):
        trained.step()
    values = attributes(trained)
    assert values["recent"] == [4, 6]
    assert [values[path] for path in values if path.endswith("hooked")] == [6]
    write_attributes(fresh, values)
    assert attributes(fresh) == values
    with pytest.raises(
        HiddenStateError, match=r"Kept keeps 'momentum.0' in an attribute, .* self.state\[param"
    ):
        write_attributes(fresh, {"momentum.0": torch.ones(3)})


RUNS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import dpexp
from dpexp.training.registry import FOR_SPARSE, OPTIMIZERS
short = dict(steps=2, warmup=1, clip_norm=1.0, track=False, quiet=True)
for name in OPTIMIZERS:
    assert dpexp.run("whole", optimizer=name, virtual=2, **short).status == "finished"
for name in FOR_SPARSE:
    record = dpexp.run("hybrid", optimizer=name, sparse=True, devices="cpu", **short)
    assert record.status == "finished"
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
"""


def test_a_run_with_any_optimizer_does_not_import_torch_dynamo(dpexp_home: Path) -> None:
    command = [sys.executable, "-B", "-c", RUNS]  # -B: not in a fork, which has everything imported
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr

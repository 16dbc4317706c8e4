"""Activation checkpointing: blocks compute their activations again, and the same ones."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.engine_runs import ended
from helpers.in_ranks import records
from torch import Tensor, nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.placed import UNOBSERVED
from dpexp.timing import Timer

SHORT = {"steps": 4, "warmup": 2, "phase_steps": 2, "batch_size": 10, "checkpoint": True}


class Layers(nn.Module):
    """Three layers of a linear layer and another one, which ``inner`` makes."""

    def __init__(self, inner: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), inner(), nn.Tanh()) for _ in range(3))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, 6, generator=generator)
        return x, x.flip(1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def random_layers() -> nn.Module:
    return Layers(lambda: nn.Dropout(0.3))


def batch_norms() -> nn.Module:
    return Layers(lambda: nn.BatchNorm1d(6))


def config(strategy: str, model: str, **options: Any) -> RunConfig:
    return RunConfig.from_dict({"strategy": strategy, "model": model, "checkpoint": True, **options})


# --- what is computed -----------------------------------------------------------------------------


def test_ranks_that_checkpoint_compute_what_a_single_device_computes() -> None:
    random = SHORT | {"model": f"{__file__}:random_layers"}
    sharded, *others = records(
        2,
        SHORT | {"model": "transformer:dim=16,heads=2", "strategy": "fsdp", "accumulate": 2},
        *({**random, "strategy": strategy} for strategy in ("fsdp", "ddp")),
    )
    for each in (sharded, *others):
        assert each.verification["passed"]
        assert each.verification["gradient_error"] < 1e-12
        modules = {row["module"] for row in each.device_map} | {row["module"] for row in each.shapes}
        assert modules & {"encoder.layers.1.linear1", "layers.1.0"}
        assert not [name for name in modules if "wrapped" in name]
    assert {row["unit"] for row in sharded.device_map} == {
        "",
        "embedding",
        "encoder.layers.0",
        "encoder.layers.1",
        "encoder.norm",
        "head",
    }


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("single", {}),
        ("whole", {"virtual": 2}),
        ("functional", {"virtual": 2}),
        ("block", {"virtual": 2, "block": ["layers.1"]}),
        ("block", {"virtual": 2, "block": ["layers.1.0", "layers.2"]}),
        ("hybrid", {"virtual": 1, "host": ["layers.0.0"]}),
        ("place", {"virtual": 2, "place": ["layers.0=cpu:1", "layers.1.0=cpu:1"]}),
    ],
    ids=str,
)
def test_every_layout_checkpoints_also_around_what_it_lays_out(strategy: str, options: Any) -> None:
    prepared = prepare(config(strategy, f"{__file__}:random_layers", **options))
    result = verify(prepared)
    assert result.passed, result.cause
    assert ended(prepared)["error"] == ""


def test_a_batch_norm_that_updates_its_statistics_twice_is_found() -> None:
    end = ended(prepare(config("whole", f"{__file__}:batch_norms", virtual=2)))
    assert end["fields"]["kind"] == "buffers"
    assert end["fields"]["tensor"] == "layers.0.1.num_batches_tracked"


def saved_bytes(checkpoint: bool) -> int:
    """The most bytes that the graph of a step keeps at once."""
    model = "transformer:dim=16,heads=2,depth=4"
    prepared = prepare(RunConfig("single", model=model, devices="cpu", checkpoint=checkpoint))
    placed = prepared.strategy.lay_out(prepared.model, [], Timer())
    kept = dict[int, int]()

    class Observer(type(UNOBSERVED)):  # type: ignore[misc]
        def loss_ended(self, loss: Tensor) -> None:
            kept[-1] = sum(kept.values())

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        placed.step(
            next(prepared.batches(0)), prepared.data.objective.loss, lambda: None, observer=Observer()
        )
    return kept[-1]


def test_fewer_bytes_are_kept_for_backward() -> None:
    assert 0 < saved_bytes(True) < 0.2 * saved_bytes(False)


# --- what is refused ------------------------------------------------------------------------------


def test_what_has_no_backward_or_lays_itself_out_does_not_checkpoint() -> None:
    with pytest.raises(ConfigError, match="--eval has none"):
        RunConfig("single", checkpoint=True, eval=True)
    with pytest.raises(ConfigError, match="a layout of custom checkpoints by itself"):
        RunConfig("custom", checkpoint=True)

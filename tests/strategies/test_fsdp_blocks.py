"""Blocks: the parts of a model that fsdp gathers one at a time, and that checkpoints compute again."""

from typing import Any

import torch
from helpers.in_ranks import records
from torch import Tensor, nn

from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.strategies.blocks import blocks_of, units_of
from dpexp.strategies.ranks import Fsdp

LAYER = nn.TransformerEncoderLayer(4, 2, batch_first=True)


class Tower(nn.Module):
    """What is written here and there: lists at any depth, lists in lists, parts without a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.body = nn.Module()
        self.body.norm = nn.LayerNorm(4)
        self.body.stages = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])})
        self.body.stages["b"] = nn.TransformerEncoder(LAYER, 2)
        self.scales = nn.ParameterList([torch.ones(4)])
        self.heads = nn.ModuleList([nn.ParameterList([torch.ones(4)])])


def test_blocks_are_what_the_outermost_lists_have() -> None:
    assert blocks_of(Tower()) == ["body.stages.a.0", "body.stages.b"]
    listed = ["body.stages.a.0", "body.stages.a.1", "body.stages.b"]
    assert units_of(Tower()) == ["stem", "body.norm", *listed, "scales", "heads"]
    assert Fsdp(RunConfig("fsdp").options).blocks(Tower()) == [
        "stem",
        "body.norm",
        "body.stages.a.0",
        "body.stages.b",
    ]
    assert blocks_of(nn.TransformerEncoder(LAYER, 2)) == ["layers.0", "layers.1"]


def test_a_model_without_lists_has_its_children_as_blocks() -> None:
    assert blocks_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == ["0", "2"]
    assert blocks_of(nn.Linear(4, 4)) == units_of(nn.Linear(4, 4)) == []


def test_layers_of_a_transformer_are_units_and_not_the_encoder_at_once() -> None:
    prepared = prepare(RunConfig("fsdp", model="transformer:depth=3"))
    strategy: Any = prepared.strategy
    layers = [f"encoder.layers.{number}" for number in range(3)]
    assert strategy.blocks(prepared.model) == ["embedding", *layers, "encoder.norm", "head"]


# --- lists of modules that compute some rows each -------------------------------------------------


class Experts(nn.Module):
    """Each row is computed by one of three experts; one without rows is called with none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(1).max(1)
        outputs = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            outputs = outputs.index_add(0, rows, expert(x[rows]) * weights[rows, None])
        return outputs


class Mixture(nn.Module):
    """Experts, and a layer with other ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.experts = Experts()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), Experts()) for _ in range(1))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, 6, generator=generator)
        return x, x.flip(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.experts(self.first(x))
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_experts_are_units_that_every_rank_calls() -> None:
    """Batches of 5 rows: a rank has 2, and so rows for one or two of three experts."""
    short = {"steps": 4, "warmup": 1, "phase_steps": 1, "batch_size": 5, "strategy": "fsdp"}
    short |= {"model": f"{__file__}:Mixture", "comm_timeout": 20.0}
    for found in records(2, short, short | {"checkpoint": True}):
        assert found.verification["passed"] is True
        units = {row["unit"] for row in found.device_map}
        experts = {f"experts.experts.{number}" for number in range(3)}
        assert units == {"first", "experts.router", *experts, "layers.0"}

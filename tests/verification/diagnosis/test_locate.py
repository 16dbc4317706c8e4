"""Locate: planted bugs are caught; the message names module and parameter, and what the bug looks like."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import planted
import pytest
import torch
from planted import Caching, Planted, mean_of_means, proof_result, scaled, weighted, wrapped
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.strategies.placed import GradientSync, Placed
from dpexp.verification.result import Result

MODEL = f"{planted.__file__}:Net"


def verified(place: Callable[[nn.Module], Placed], **config: Any) -> Result:
    prepared = prepare(RunConfig("single", devices="cpu", model=MODEL, **config))
    return verify(replace(prepared, strategy=Planted(place_wrong=place)))


OUTPUT = "the first output in forward order that differs is of "
GRADIENT = "the first gradient in backward order that differs is of parameter "
PLANTED: dict[str, tuple[Callable[[nn.Module], Placed], list[str]]] = {
    "output scaled": (
        wrapped("second", lambda module, inputs: module(inputs) * 1.5),
        [
            "step 1 (30 rows): outputs differ",
            OUTPUT + "the wrapper around module 'second'",
            "it is 1.5 times",
        ],
    ),
    "output scaled a little": (
        wrapped("second", lambda module, inputs: module(inputs) * 1.001),
        [OUTPUT + "the wrapper around module 'second'", "it is 1.001 times"],
    ),
    "inside a module": (
        wrapped("second", lambda module, inputs: module(inputs * 2)),
        [OUTPUT + "module 'second'"],
    ),
    "rows repeated": (
        wrapped("", lambda module, inputs: torch.cat([module(inputs[:-1]), module(inputs[:1])])),
        [OUTPUT + "module 'first'", "rows 29 repeat rows 0"],
    ),
    "fewer rows": (
        wrapped("", lambda module, inputs: module(inputs[:-2])),
        ["outputs differ by inf", OUTPUT + "module 'first': it has 28 rows instead of 30: rows are dropped"],
    ),
    "rows in another order": (
        wrapped("", lambda module, inputs: module(inputs.flip(0))),
        ["outputs differ by ", OUTPUT + "module 'first'"],
    ),
    "not finite": (wrapped("", lambda module, inputs: module(inputs) / 0), ["outputs differ by inf"]),
    "mean of means": (
        wrapped("second", weighted(mean_of_means, 3), pieces=3),
        [
            "step 2 (10 rows): gradients",
            GRADIENT + "'second.",
            "the mean of the shards' means",
            "4, 4, 2 rows",
        ],
    ),
    "mean of means of unknown shards": (
        wrapped("second", weighted(mean_of_means, 3)),
        [
            "step 2 (10 rows): gradients",
            GRADIENT + "'second.",
            "the mean of the shards' means",
            "4, 4, 2 rows",
        ],
    ),
    "replica dropped": (
        wrapped("", weighted(lambda rows: [1.0, 0.0, 1.0], 3), pieces=3),
        ["step 1 (30 rows): gradients", "the rows of shard 1 (of 3) are missing in it"],
    ),
    "only one replica": (
        wrapped("", weighted(lambda rows: [0.0, 0.0, 1.0], 3), pieces=3),
        ["it is that of shard 2 alone: the sum over shards is missing"],
    ),
    "times n": (
        wrapped("second", weighted(lambda rows: [2.0, 2.0], 2), pieces=2),
        [GRADIENT + "'second.", "it is 2 times too large: a sum over 2 shards instead of the mean"],
    ),
    "divided by n": (
        wrapped("", weighted(lambda rows: [0.25] * 4, 4), pieces=4),
        [GRADIENT + "'third.", "it is 1/4 of it: divided by the number of shards once too often"],
    ),
    "one parameter": (scaled(3.0, "second.weight"), [GRADIENT + "'second.weight'", "it is 3 times"]),
    "no gradient": (scaled(0.0, "first.bias"), [GRADIENT + "'first.bias'", "it is zero"]),
    "detached": (
        wrapped("first", lambda module, inputs: module(inputs).detach()),
        [GRADIENT + "'first.", "the layout has no gradient for it"],
    ),
    "missing buffer": (lambda model: planted.on_host(Forgets(model)), ["buffers (calls)", "it is missing"]),
}


class Forgets(Caching):
    """Removes the model's buffer after it has been copied."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        del module.calls
        self.calls_of_module = torch.zeros(())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.module.__dict__["calls"] = self.calls_of_module
        return self.module(inputs)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught_and_described(name: str) -> None:
    place, words = PLANTED[name]
    result = verified(place)
    assert result.passed is False
    for word in words:
        assert word in result.cause


@pytest.mark.parametrize("name", PLANTED)
def test_a_failure_costs_at_most_twice_a_verification(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows that are computed: it ends early; measuring rounding and finding the cause take some more."""
    prepared = prepare(RunConfig("single", devices="cpu", model=MODEL))
    rows, net = [0], type(prepared.model)
    forward = net.forward

    def counted(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        rows[0] += len(x)
        return forward(self, x)

    monkeypatch.setattr(net, "forward", counted)
    assert verify(prepared).passed
    of_right, rows[0] = rows[0], 0
    verify(replace(prepared, strategy=Planted(place_wrong=PLANTED[name][0])))
    assert 0 < rows[0] <= 2 * of_right


def test_a_right_layout_has_no_cause() -> None:
    assert verified(planted.on_host).cause == ""


def test_a_mean_over_tokens_is_told_from_a_mean_over_rows() -> None:
    """Each of two replicas has the mean over its own tokens, of which a row has more or fewer."""
    model = nn.Linear(5, 1)
    tokens = torch.arange(1.0, 11.0, dtype=torch.float64)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.squeeze(1) * targets).sum() / targets.sum()

    class Mean(GradientSync):
        def backward(self, loss_of_batch: torch.Tensor, batch: Batch) -> None:
            means = [loss(model_of[0](x), y) * len(y) for x, y in zip(*halves(batch), strict=True)]
            (sum(means) / batch.rows).backward()

    def halves(batch: Batch) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        return batch.inputs[0].double().chunk(2), batch.targets.double().chunk(2)

    def lay_out(module: nn.Module) -> Placed:
        model_of.append(module)
        return planted.on_host(module, Mean())

    model_of: list[nn.Module] = []
    generator = torch.Generator().manual_seed(0)
    batch = Batch((torch.randn(10, 5, generator=generator),), tokens, 10, 10)
    result = proof_result(model, lay_out, [batch], loss)
    assert "the loss is not a mean over rows (but over tokens, say)" in result.cause

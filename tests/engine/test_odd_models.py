"""Odd models: layouts and verification take what is unusual in a model."""

from __future__ import annotations

import pytest
import torch
from odd_models import Hooked
from torch import nn

from dpexp.config import RunConfig
from dpexp.engine.diagnosis import explained
from dpexp.engine.dry_run import predict
from dpexp.engine.prepare import prepare
from dpexp.engine.verification import verify


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # likewise
def test_a_compiled_submodule_is_placed_predicted_and_verified() -> None:
    options = {"place": ("middle=cpu:1",)}
    prepared = prepare(RunConfig("place", model="odd_models:Compiled", virtual=2, options=options))
    rows = predict(prepared, [next(prepared.batches(0)).inputs]).shapes
    assert {row["device"] for row in rows if row["module"] == "middle"} == {"cpu:1"}
    assert verify(prepared).passed


def test_a_module_that_reentrant_checkpointing_calls_twice_under_ddp_is_an_error_with_advice() -> None:
    error = RuntimeError("Expected to mark a variable ready only once.")
    assert "use_reentrant=False" in explained(error)


def test_trying_a_batch_leaves_gradients_and_their_hooks_as_they_are() -> None:
    config = RunConfig("ddp", model="odd_models:Hooked", devices="cpu")
    model = prepare(config).model
    assert isinstance(model, Hooked)
    assert model.finished == []
    assert all(parameter.grad is None for parameter in model.parameters())
    nn.functional.mse_loss(model(torch.ones(1, 5)), torch.ones(1, 2)).backward()
    assert len(model.finished) == 1

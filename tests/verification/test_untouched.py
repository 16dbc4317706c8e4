"""Untouched: what a layout replaces for every model must compute the same; ``cases/for_all`` has more."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.verification.result import VerificationError


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_replaced_function_is_refused_unless_it_computes_the_same(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = functional.linear

    def lay_out(model: nn.Module, devices: Any) -> nn.Module:
        monkeypatch.setattr(functional, "linear", lambda *args: factor * original(*args))
        return model

    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (12, 7, 12)]
    if factor == 1:
        assert dpexp.prove(nn.Linear(5, 2), lay_out, batches, functional.mse_loss).passed
        return
    with pytest.raises(VerificationError, match="changed what every model computes: outputs"):
        dpexp.prove(nn.Linear(5, 2), lay_out, batches, functional.mse_loss)

"""Unreached: what no verified step has called or trained is in the Record and on the screen."""

from typing import Any

import torch
from torch import nn

import dpexp
from dpexp.report.verification import unreached


class Branches(nn.Module):
    """One layer is called and not trained, one is trained and not called, and two are neither."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.apart = nn.Linear(5, 2), nn.Linear(5, 2)
        self.left_out = nn.Sequential(nn.Linear(5, 2), nn.Tanh())
        self.cut_off = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> Any:
        outputs = self.used(x) + nn.functional.linear(x, self.apart.weight, self.apart.bias)
        return outputs + self.cut_off(x).detach()


def branches(features: Any = None) -> Branches:
    torch.manual_seed(0)
    return Branches()


def run(model: str) -> dpexp.Record:
    return dpexp.run("single", model=model, devices="cpu", steps=2, track=False)


def test_what_is_not_reached_is_recorded_and_shown() -> None:
    facts = run(f"{__file__}:branches").verification
    assert facts["unreached"] == {
        "modules": ["left_out"],
        "parameters": ["left_out.0.weight", "left_out.0.bias", "cut_off.weight", "cut_off.bias"],
    }
    line = "not verified: modules left_out, which are never called; parameters cut_off.weight, cut_off.bias, "
    assert unreached(facts).startswith(line)


def test_a_model_that_is_reached_as_a_whole_has_no_line() -> None:
    facts = run("transformer").verification
    assert facts["unreached"] == {"modules": [], "parameters": []}
    assert unreached(facts) == ""

"""Counts: what a loss averages over is measured from its values on parts of a batch."""

from typing import Any

import torch

from dpexp.watch.counts import rules


def masked_mean(inputs: Any) -> float:
    (values, mask, _), _ = inputs
    return float((values * mask).sum() / mask.sum())


def test_labels_that_a_loss_does_not_read_rule_nothing_out() -> None:
    labels = torch.arange(24).reshape(4, 6)
    labels[:2, 3:] = -100
    values = torch.ones(4, 6) + 1e-4 * torch.arange(4).unsqueeze(1)  # of rows that are nearly alike
    found = rules(masked_mean, ((values, labels != -100, labels), {}))
    assert found is not None
    assert min(found, key=lambda rule: found[rule]) == ("labels", "[0][2]")

"""Row-wise Adagrad: Adagrad with one number of state for each row of a table, as recommenders use it.

    sum[row] += mean(gradient[row] ** 2)          row -= lr * gradient[row] / (sqrt(sum[row]) + eps)

A table of ``(rows, dim)`` has a state of ``(rows, 1)``, and rows without a gradient are not touched.

Source: Mudigere et al., "Software-hardware co-design for fast and scalable training of deep learning
recommendation models", 2022; it is the exact row-wise Adagrad of FBGEMM.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class RowwiseAdagrad(torch.optim.Optimizer):
    """For parameters ``(rows, dim)`` with dense or sparse gradients."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.01,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        if min(lr, eps, initial_accumulator_value) < 0:
            raise ValueError("lr, eps and initial_accumulator_value must be at least 0")
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial_accumulator_value})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of all tables that have a gradient."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, table.grad, group["lr"], group["eps"], group["initial"])

    def _update(
        self, table: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float, initial: float
    ) -> None:
        state = self.state[table]
        if not state:
            state["sum"] = torch.full_like(table.detach()[:, :1], initial)
        if not gradient.is_sparse:
            state["sum"].add_(gradient.square().mean(1, keepdim=True))
            table.addcdiv_(gradient, state["sum"].sqrt().add_(eps), value=-lr)
            return
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state["sum"].index_add_(0, rows, values.square().mean(1, keepdim=True))
        table.index_add_(0, rows, values / state["sum"][rows].sqrt_().add_(eps), alpha=-lr)

"""Locate: where a layout begins to differ from the single device, and what the difference looks like.

A failed step has kept the outputs of every module call and the gradients of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from dpexp.config.errors import plural
from dpexp.data.halves import no_mean_over_rows
from dpexp.verification.alone import alone
from dpexp.verification.compare import Tensors, distance
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.agreement import Agreement, Found
from dpexp.verification.diagnosis.gradients import FirstGradient
from dpexp.verification.diagnosis.modules import FirstModule
from dpexp.verification.failure import Failure
from dpexp.verification.take import Take

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""


class Locator:
    """Every rank must make one and call ``find``; all get the same."""

    def __init__(self, sides: Take, failure: Failure, model: nn.Module) -> None:
        self.sides, self.failure, self.model = sides, failure, model
        self.group, self.limits = sides.group, sides.judge.limits
        self._ranks = Agreement(sides.group)

    def find(self) -> Found:
        """One message: what differs in which step, the first module, the first parameter, and the pattern.

        An error while the difference is located is a part of the message.
        """
        failed, start = self.failure.worst, self._difference()
        if self.failure.text:
            return Found(self.failure.text, _owner(failed.tensor))
        if failed.kind in ("buffers", *OF_OPTIMIZER):
            reason = self._ranks.found("the reason", lambda: Found(self._of_tensor()))
            return Found(": ".join(filter(None, (start, reason.text))), _owner(failed.tensor))
        module = self._ranks.found(
            "the first module", FirstModule(self.sides, self.failure, self._ranks).find
        )
        gradient = self._ranks.found(
            "the first gradient", FirstGradient(self.sides, self.failure, self._ranks).find
        )
        located = [module, gradient] if module.is_sure else [gradient, module]
        hint = self.failure.hint or self._ranks.found("the loss", lambda: Found(self._of_loss())).text
        text = "; ".join(filter(None, (start, *(each.text for each in located), hint)))
        return Found(text, next((each.module for each in located if each.module is not None), ""))

    def _difference(self) -> str:
        """What differs in which step."""
        failed, rows = self.failure.worst, self.failure.batch.rows
        name = {"outputs": f"outputs{failed.tensor}", "loss": "the loss"}.get(failed.kind)
        name = name or f"{failed.kind} ({failed.tensor})"
        verb = "differs" if failed.kind == "loss" else "differ"
        when = "after " if failed.kind in OF_OPTIMIZER else ""
        mode = ", in eval mode" if self.failure.in_eval_mode else ""
        shown = "" if when else f" ({plural(rows, 'row')}{mode})"
        return f"{when}step {failed.step}{shown}: {name} {verb} by {failed.error:.1e}"

    # --- what only some kinds show ---

    def _of_loss(self) -> str:
        """That the loss is no mean over rows, where the rows are split; a hint that is known already."""
        failed, single, batch = self.failure.worst, self.sides.single, self.failure.batch
        output = self.failure.expected.outputs.get(failed.tensor)
        is_scalar = failed.kind == "outputs" and output is not None and not output.dim()
        if not single.chunks.splits or not (is_scalar or failed.kind == "loss"):
            return ""
        with alone():
            return no_mean_over_rows(self.model, single.objective, batch)

    def _of_tensor(self) -> str:
        """What is wrong with a buffer, or with what the optimizer has made."""
        tensor, kind = self.failure.worst.tensor, self.failure.worst.kind
        if kind == "optimizer":
            return ""
        layout, is_buffer = self.sides.layout, kind == "buffers"
        before = dict(self.model.state_dict(keep_vars=True)) | dict(self.model.named_buffers())

        def stale() -> bool | None:
            found = layout.buffers() if is_buffer else layout.full_parameters()
            return (
                tensor in before and distance(found[tensor], before[tensor]) == 0 if tensor in found else None
            )

        by_rank = self._ranks.all_gather(stale)
        if all(each is None for each in by_rank):
            return "it is missing in the layout"
        if any(by_rank):
            return (
                "it is stale, as it was before the first step" if is_buffer else "the optimizer left it out"
            )
        return "" if is_buffer else self._of_updates()

    def _of_updates(self) -> str:
        """By which factor each rank's parts of the parameters have been updated."""
        layout, before = self.sides.layout, self.failure.before
        expected = self.sides.single.trainer.full_parameters()
        found = self._ranks.all_gather(lambda: _update_factor(layout.parameters(), expected, before))
        factors = [factor for factor in found if factor is not None]
        if len(factors) < len(found) or all(patterns.is_close(factor, 1) for factor in factors):
            return ""
        if all(patterns.is_close(factor, factors[0]) for factor in factors):
            return f"its update is {factors[0]:.6g} times the single device's"
        numbers = ", ".join(f"{factor:.4g}" for factor in factors)
        return (
            f"on each rank its own part has been updated by {numbers} times what a single device does: the "
            "optimizer computes with a number of its own shard (a norm, a mean), not of all"
        )


def _owner(tensor: str) -> str:
    """The module that has a parameter or a buffer, of which the optimizer may keep ``parameter: key``."""
    return tensor.partition(": ")[0].rpartition(".")[0]


def _update_factor(
    parameters: Mapping[str, nn.Parameter], expected: Tensors, before: Tensors
) -> float | None:
    """How many times too large the updates of this rank are."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    pairs = list[tuple[torch.Tensor, torch.Tensor]]()
    for name, parameter in parameters.items():
        if before[name].shape != parameter.shape:  # of a large table some rows
            continue
        own, wanted, start = (
            each.detach().cpu().double() for each in (parameter, expected[name], before[name])
        )
        if isinstance(own, DTensor):
            wanted, start = (
                distribute_tensor(each, own.device_mesh, own.placements, src_data_rank=None).to_local()
                for each in (wanted, start)
            )
            own = own.to_local()
        pairs.append(((own - start).flatten(), (wanted - start).flatten()))
    made, right = (torch.cat(each) for each in zip(*pairs, strict=True))
    return patterns.factor(made, right)

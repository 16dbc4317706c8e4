"""Locate: where a layout begins to differ from the single device, and what the difference looks like.

A failed step has kept the outputs of every module call and the gradients of both sides.
"""

from __future__ import annotations

from itertools import chain

from torch import nn

from dpexp.config.ranges import plural
from dpexp.verification.compare import Tensors, distance
from dpexp.verification.diagnosis.agreement import Agreement
from dpexp.verification.diagnosis.gradients import FirstGradient
from dpexp.verification.diagnosis.modules import FirstModule
from dpexp.verification.take import Failure, Report, Take, no_report

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""


class Locator:
    """Every rank must make one and call ``message``; all get the same text."""

    def __init__(self, sides: Take, failure: Failure, model: nn.Module, report: Report = no_report) -> None:
        self.sides, self.failure, self.model, self._report = sides, failure, model, report
        self.group, self.limits = sides.group, sides.judge.limits
        self._ranks = Agreement(sides.group)

    def message(self) -> str:
        """One message: what differs in which step, the first module, the first parameter, and the pattern.

        The difference is reported first. An error while it is located is a part of the message.
        """
        failed, start = self.failure.worst, self._difference()
        self._report(failed, start)
        if failed.kind in ("buffers", *OF_OPTIMIZER):
            return ": ".join(filter(None, (start, self._ranks.text_of("the reason", self._of_tensor))))
        module = FirstModule(self.sides, self.failure, self._ranks)
        gradient = FirstGradient(self.sides, self.failure, self._ranks)
        of_module = self._ranks.text_of("the first module", module.text)
        of_gradient = [self._ranks.text_of("the first gradient", gradient.text), gradient.pattern]
        located = [of_module, *of_gradient] if module.is_sure else [*of_gradient, of_module]
        return "; ".join(filter(None, (start, *located)))

    def _difference(self) -> str:
        """What differs in which step."""
        failed, rows = self.failure.worst, self.failure.batch.rows
        name = {"outputs": f"outputs{failed.tensor}", "loss": "the loss"}.get(failed.kind)
        name = name or f"{failed.kind} ({failed.tensor})"
        verb = "differs" if failed.kind == "loss" else "differ"
        when = "after " if failed.kind in OF_OPTIMIZER else ""
        made = self.sides.made.get(failed.step, "")
        counted = plural(rows, "row")
        shown = "" if when else f" ({f'{counted}: {made}' if made else counted})"
        return f"{when}step {failed.step}{shown}: {name} {verb} by {failed.error:.1e}"

    # --- buffers, parameters and the optimizer's state ---

    def _of_tensor(self) -> str:
        """What is wrong with a tensor after a step."""
        tensor = self.failure.worst.tensor
        if self.failure.worst.kind == "optimizer":
            return ""
        is_buffer = self.failure.worst.kind == "buffers"
        found: Tensors = self.sides.layout.buffers() if is_buffer else self.sides.layout.full_parameters()
        before = dict(self.model.state_dict(keep_vars=True)) | dict(self.model.named_buffers())
        texts = []
        if tensor not in found:
            texts.append("it is missing in the layout")
        elif tensor in before and distance(found[tensor], before[tensor]) == 0:
            writer = (
                "it is stale, as it was before the first step" if is_buffer else "the optimizer left it out"
            )
            texts.append(writer)
        by_rank: list[list[str]] = self._ranks.all_gather(texts)
        return next(chain.from_iterable(by_rank), "")

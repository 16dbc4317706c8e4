"""Locate: where a layout begins to differ from the single device, and what the difference looks like.

A failed step has kept the outputs of every module call and the gradients of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.config.words import plural, shown
from dpexp.data.objective import no_mean_over_rows
from dpexp.distributed.group import RankError
from dpexp.training.optimizer_state import groups
from dpexp.verification.alone import alone
from dpexp.verification.compare import Tensors, distance
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.gradients import FirstGradient
from dpexp.verification.diagnosis.modules import first_module
from dpexp.verification.diagnosis.patterns import Found
from dpexp.verification.sides import Sides
from dpexp.verification.trial import OF_OPTIMIZER, Failure, short_optimizer

OF_BFLOAT16 = (2.0**-11, 2.0**-7)
"""The relative errors of tensors whose numbers were rounded to bfloat16, once or a few times: about 2**-9."""


def located(what: str, search: Callable[[], Found]) -> Found:
    """What the search finds, or which error has ended it: the difference that it explains is known.

    Every rank must call this. All get the same, since all have gathered the same, or the same RankError.
    """
    try:
        return search()
    except RankError as error:
        return Found(f"{what}: not located, {error}")
    except Exception as error:  # of any kind: it is the user's model
        return Found(f"{what}: not located, {describe(error)}")


class Locator:
    """Every rank must make one and call ``find``; all get the same."""

    def __init__(self, sides: Sides, failure: Failure, model: nn.Module) -> None:
        self.sides, self.failure, self.model = sides, failure, model
        self.group = sides.group

    def find(self) -> Found:
        """One message: what differs in which step, the first module, the first parameter, and the pattern.

        An error while the difference is located is a part of the message.
        """
        failed, start = self.failure.worst, self._difference()
        if self.failure.text:
            return Found(self.failure.text, _owner(failed.tensor))
        if failed.kind in ("buffers", *OF_OPTIMIZER):
            reason = located("the reason", lambda: Found(self._of_tensor()))
            return Found(": ".join(filter(None, (start, reason.text))), _owner(failed.tensor))
        module = located("the first module", lambda: first_module(self.sides, self.failure))
        gradient = located("the first gradient", FirstGradient(self.sides, self.failure).find)
        begins = [module, gradient] if module.is_sure else [gradient, module]
        hint = self.failure.hint or located("the loss", lambda: Found(self._of_loss())).text
        text = "; ".join(filter(None, (start, *(each.text for each in begins), hint)))
        return Found(text, next((each.module for each in begins if each.module is not None), ""))

    def _difference(self) -> str:
        """What differs in which step."""
        failed, rows = self.failure.worst, self.failure.batch.rows
        name = {"outputs": f"outputs{failed.tensor}", "loss": "the loss"}.get(failed.kind)
        name = name or f"{failed.kind} ({failed.tensor})"
        verb = "differs" if failed.kind == "loss" else "differ"
        when = "after " if failed.kind in OF_OPTIMIZER else ""
        mode = ", in eval mode" if self.failure.in_eval_mode else ""
        size = "" if when else f" ({plural(rows, 'row')}{mode})"
        return f"{when}step {failed.step}{size}: {name} {verb} by {failed.error:.1e}"

    # --- what only some kinds show ---

    def _of_loss(self) -> str:
        """That the loss is no mean over rows, where the rows are split; a hint that is known already."""
        failed, batch = self.failure.worst, self.failure.batch
        output = self.failure.expected.outputs.get(failed.tensor)
        is_scalar = failed.kind == "outputs" and output is not None and not output.dim()
        if not self.sides.chunks.splits or not (is_scalar or failed.kind == "loss"):
            return ""
        with alone():
            return no_mean_over_rows(self.model, self.failure.expected.objective, batch)

    def _of_tensor(self) -> str:
        """What is wrong with a buffer, or with what the optimizer has made."""
        tensor, kind = self.failure.worst.tensor, self.failure.worst.kind
        layout, is_buffer = self.sides.layout, kind == "buffers"
        if kind == "optimizer":
            key = tensor.rpartition(": ")[2]
            return f"the optimizer ({layout.optimizers}) keeps another '{key}'{self._settings()}"
        before = dict(self.model.state_dict(keep_vars=True)) | dict(self.model.named_buffers())

        def stale() -> bool | None:
            found = layout.buffers() if is_buffer else layout.full_parameters()
            return (
                tensor in before and distance(found[tensor], before[tensor]) == 0 if tensor in found else None
            )

        by_rank = self.group.all_gather(self.group.together(stale))
        if all(each is None for each in by_rank):
            return "it is missing in the layout"
        if any(by_rank):
            left_out = f"the optimizer ({layout.optimizers}) left it out"
            return "it is stale, as it was before the first step" if is_buffer else left_out
        return "" if is_buffer else self._of_updates()

    def _of_updates(self) -> str:
        """By which factor each rank's parts of all parameters, or of the worst, have been updated."""
        layout = self.sides.layout
        optimizer = f"the optimizer ({layout.optimizers})"
        by_rank = self.group.all_gather(self.group.together(self._measured_update))
        for factors in zip(*(of_rank for of_rank, _ in by_rank), strict=True):
            if None in factors or all(patterns.is_close(factor, 1) for factor in factors):
                continue
            if all(patterns.is_close(factor, factors[0]) for factor in factors):
                times = f"{factors[0]:.6g} times the single device's"
                return f"{optimizer} makes an update {times}{self._settings()}"
            numbers = ", ".join(f"{factor:.4g}" for factor in factors)
            return (
                f"on each rank its own part has been updated by {numbers} times what a single device does: "
                f"{optimizer} computes with a number of its own shard (a norm, a mean), not of all"
            )
        lowest, highest = OF_BFLOAT16
        is_rounded = lowest < max(error for _, error in by_rank) < highest
        rounded = "numbers that are rounded to bfloat16 have an error of this size" if is_rounded else ""
        another = f"{optimizer} makes another update of the same gradients{self._settings()}"
        short = short_optimizer(self.failure.type_of_update, self.sides.single.dtype, layout)
        return "; ".join(filter(None, (another, short or rounded)))

    def _measured_update(self) -> tuple[tuple[float | None, float | None], float]:
        """How many times too large this rank's updates are, of all parameters and of the worst; its error."""
        pairs = _updates(self.sides.layout.parameters(), self.failure.after, self.failure.before)
        every = [torch.cat(each) for each in zip(*pairs.values(), strict=True)]
        worst = pairs.get(self.failure.worst.tensor, tuple(every))
        size, error = float(worst[1].norm()), float((worst[0] - worst[1]).norm())
        return (patterns.factor(*every), patterns.factor(*worst)), error / size if size else 0.0

    def _settings(self) -> str:
        """The settings of the optimizers' groups that differ from those of a single device."""
        layout, single = self.sides.layout.optimizers, self.sides.single.trainer.optimizers
        if layout is None or single is None:
            return ""
        pairs = zip(
            chain.from_iterable(groups(layout.members)),
            chain.from_iterable(groups(single.members)),
            strict=False,
        )
        apart = {
            f"{key} is {shown(own[key])} instead of {shown(expected[key])}": None
            for own, expected in pairs
            for key in own.keys() & expected.keys()
            if str(own[key]) != str(expected[key])
        }
        return f": its {'; '.join(sorted(apart))}" if apart else ""


def _owner(tensor: str) -> str:
    """The module that has a parameter or a buffer, of which the optimizer may keep ``parameter: key``."""
    return tensor.partition(": ")[0].rpartition(".")[0]


def _updates(
    parameters: Mapping[str, nn.Parameter], expected: Tensors, before: Tensors
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What a step has added to this rank's part of each parameter, and what it should have."""
    from torch.distributed.tensor import DTensor, distribute_tensor  # it takes long to import

    pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]()
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
        pairs[name] = (own - start).flatten(), (wanted - start).flatten()
    return pairs

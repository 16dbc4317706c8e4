"""Step profile: the memory of one further step, by device and category, and its floating-point operations.

The step comes last, after everything that a run records of its training, and so changes none of it.
"""

from collections import Counter
from collections.abc import Callable

import torch

from dpexp import devices
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.measurement.flops import CountFlops
from dpexp.measurement.observe import device_map, device_of, size_of
from dpexp.record.record import Row
from dpexp.strategies.module_calls import ModuleCall, module_calls
from dpexp.strategies.modules import parts
from dpexp.strategies.placed import Placed, StepObserver
from dpexp.training.preserve import is_compiled
from dpexp.training.trainer import Trainer

_Bytes = Counter[str]
"""Bytes by device."""


class StepProfile(StepObserver):
    """One step of a trainer, observed; ``note`` says why not, or what is not known.

    ``tokens`` counts those of a batch, for the losses that do.
    """

    def __init__(self, trainer: Trainer, tokens: Callable[[Batch], float | None]) -> None:
        self._trainer, self._placed, self._count_tokens = trainer, trainer.placed, tokens
        self._counted, self._gradients = CountFlops(), _Bytes()
        self._work: Row = {}
        self.note = ""

    def take(self, batch: Batch) -> None:
        """Take the step. An error in it is not one of the run, whose training is done: ``note`` has it.

        An error that not every rank has is raised: the others wait for this rank.
        """
        if is_compiled(self._placed.module):
            self.note = "not observed: operators of compiled modules are not seen"
            return
        tokens, flops = self._count_tokens(batch), dict[str, int]()
        self._work = {"rows": batch.global_rows, "flops": flops} | (
            {} if tokens is None else {"tokens": tokens}
        )
        try:
            with self._counted, module_calls(self._placed.module, entered=self._look):
                self._trainer.step(batch, self)
        except Exception as error:  # of any kind: a user's model may not stand to be observed
            self.note = f"not observed: {describe(error)}"
            if not self._trainer.group.all_failed("profile", f"{describe(error)}, after {list(flops)}"):
                raise

    def _look(self, _: ModuleCall) -> None:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            self.note = "replicas computed in threads, where operators are not seen"

    def loss_ended(self, loss: torch.Tensor) -> None:
        self._work["flops"]["forward"] = self._counted.total

    def backward_ended(self) -> None:
        self._gradients = gradient_bytes(self._placed)
        self._work["flops"]["backward"] = self._counted.total - self._work["flops"]["forward"]

    def work(self) -> Row:
        """``work`` of a Record, of this process: the FLOPs of its rows.

        None are known where an operator that multiplies matrices cannot be counted: ``uncounted``.
        """
        if self.note:
            return {"note": self.note}
        uncounted = sorted(self._counted.uncounted)
        return self._work | ({"flops": {}, "uncounted": uncounted} if uncounted else {})

    def memory(self) -> list[Row]:
        """``memory_use`` of a Record, of this process: a row for each device."""
        use = resident(self._placed, self._trainer)
        if not self.note:
            use["gradients"] = self._gradients
        return [
            {"device": name, **{kind: of_kind[name] for kind, of_kind in use.items()}}
            | devices.allocator_peaks(device)
            for name, device in sorted({devices.label(each): each for each in self._placed.devices}.items())
        ]


def resident(placed: Placed, trainer: Trainer) -> dict[str, _Bytes]:
    """The bytes of parameters, buffers and optimizer state, with their copies in replicas."""
    names = {"parameter": "parameters", "buffer": "buffers", "optimizer": "optimizer"}
    found = {name: _Bytes() for name in names.values()}
    states = trainer.optimizers.states() if trainer.optimizers is not None else ()
    for row in device_map(placed, states):
        for device in (row["device"], *row["replicas"]):
            found[names[row["kind"]]][device] += row["bytes"]
    return found


def gradient_bytes(placed: Placed) -> _Bytes:
    """The bytes of the gradients that parameters have now: of a sparse one its indices and values."""
    found, seen = _Bytes(), set()
    for part in parts(placed.module):
        for parameter in part.module.parameters(recurse=False):
            if parameter.grad is not None and id(parameter) not in seen:
                found[devices.label(device_of(part, parameter))] += size_of(parameter.grad)
                seen.add(id(parameter))
    return found

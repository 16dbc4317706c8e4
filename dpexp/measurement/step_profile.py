"""Step profile: the memory of one further step, by device and category, and its floating-point operations.

The step comes last, after everything that a run records of its training, and so changes none of it. The
formulas of FLOPs are those of ``torch.utils.flop_counter``. Its own mode would import ``torch._dynamo``,
which takes 0.7 s, counts an operator of a DTensor on every rank in full, and is silent about products for
which it has no formula: before torch 2.15, attention on a CPU; recurrent layers.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dpexp import devices
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.measurement.observe import device_map, device_of, size_of
from dpexp.record.record import Row
from dpexp.strategies.module_calls import ModuleCall, module_calls
from dpexp.strategies.modules import parts
from dpexp.strategies.placed import Placed, StepObserver
from dpexp.training.preserve import is_compiled
from dpexp.training.trainer import Trainer

_PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "linear", "trilinear"}
    | {"convolution", "attention", "attn", "rnn", "transformer"}
)
"""Words in the name of an operator that multiplies matrices."""


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with mode:`` counts each operator, in the threads that have the mode."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: else the first operator imports ``torch._dynamo``."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a DTensor: its operators on local tensors come next
        return self.counted(func, args, kwargs or {})

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The outputs of the operator ``func``, which is counted. Raises NotImplementedError here."""
        raise NotImplementedError


class CountFlops(CountingMode):  # type: ignore[no-untyped-call]
    """``total`` is that of all operators inside for which there is a formula.

    ``uncounted`` are the names of those that multiply matrices and have none: with any, it is no total.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.uncounted: set[str] = set()
        self._lock = threading.Lock()  # replicas compute in several threads

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Add the FLOPs of the operator by its formula."""
        outputs, operator = func(*args, **kwargs), getattr(func, "_overloadpacket", func)
        if operator in flop_registry:
            flops = int(flop_registry[operator](*args, **kwargs, out_val=outputs))
            with self._lock:
                self.total += flops
        elif not _PRODUCTS.isdisjoint(operator.__name__.split("_")):
            self.uncounted.add(operator.__name__)
        return outputs


_Bytes = Counter[str]
"""Bytes by device."""


def profiled_step(
    trainer: Trainer, batch: Batch, tokens: Callable[[Batch], float | None]
) -> tuple[Row, list[Row]]:
    """``work`` and ``memory_use`` of a Record, of this process and its rows, from one step of the trainer.

    ``tokens`` counts those of a batch, for the losses that do. A ``note`` says why nothing is known of the
    step. An error in it is not one of the run, whose training is done; one that not every rank has is raised,
    since the others wait for this rank.
    """
    log = _WorkObserver(trainer.placed)
    note = _observed_step(trainer, batch, log)
    use = resident(trainer) | ({} if note else {"gradients": log.gradients})
    memory = [
        {"device": name, **{kind: of_kind[name] for kind, of_kind in use.items()}}
        | devices.allocator_peaks(device)
        for name, device in sorted({devices.label(each): each for each in trainer.placed.devices}.items())
    ]
    if note:
        return {"note": note}, memory
    count, uncounted = tokens(batch), sorted(log.counted.uncounted)
    work = {"rows": batch.global_rows, "flops": {} if uncounted else log.flops}
    work |= {} if count is None else {"tokens": count}
    return work | ({"uncounted": uncounted} if uncounted else {}), memory


class _WorkObserver(StepObserver):
    """The FLOPs of a step by phase, and the bytes of its gradients."""

    def __init__(self, placed: Placed) -> None:
        self._placed, self.counted = placed, CountFlops()
        self.flops, self.gradients, self.has_threads = dict[str, int](), _Bytes(), False

    def look(self, _: ModuleCall) -> None:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            self.has_threads = True

    def loss_ended(self, loss: torch.Tensor) -> None:
        self.flops["forward"] = self.counted.total

    def backward_ended(self) -> None:
        self.gradients = gradient_bytes(self._placed)
        self.flops["backward"] = self.counted.total - self.flops["forward"]


def _observed_step(trainer: Trainer, batch: Batch, log: _WorkObserver) -> str:
    """Take the step; why it is not known what it did, if so."""
    module = trainer.placed.module
    if is_compiled(module):
        return "not observed: operators of compiled modules are not seen"
    try:
        with log.counted, module_calls(module, entered=log.look):
            trainer.step(batch, log)
    except Exception as error:  # of any kind: a user's model may not stand to be observed
        if not trainer.group.all_failed("profile", f"{describe(error)}, after {list(log.flops)}"):
            raise
        return f"not observed: {describe(error)}"
    return "replicas computed in threads, where operators are not seen" if log.has_threads else ""


def resident(trainer: Trainer) -> dict[str, _Bytes]:
    """The bytes of parameters, buffers and optimizer state, with their copies in replicas."""
    names = {"parameter": "parameters", "buffer": "buffers", "optimizer": "optimizer"}
    found = {name: _Bytes() for name in names.values()}
    states = trainer.optimizers.states() if trainer.optimizers is not None else ()
    for row in device_map(trainer.placed, states):
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

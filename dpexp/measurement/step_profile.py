"""Step profile: the memory of one further step, by device and category, and its floating-point operations.

    forward, loss -> activations, saved for backward      backward -> gradients      optimizer -> its state

The step comes last, after everything that a run records of its training, and so changes none of it.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dpexp import devices, tensors
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.measurement.flops import CountFlops
from dpexp.measurement.observe import device_map, device_of, local_parts, size_of
from dpexp.parallel import DataParallel
from dpexp.record.record import Row
from dpexp.strategies.modules import Wrapper, parts
from dpexp.strategies.placed import Placed, StepObserver
from dpexp.training.preserve import is_compiled
from dpexp.training.trainer import Trainer

_Bytes = Counter[str]
"""Bytes by device."""


class Activations:
    """``with Activations(placed) as saved:`` collects the storages that autograd saves for backward.

    Parameters, buffers and their copies in replicas are not activations, nor are a model's inputs. A tensor
    on the CPU belongs to the replica of its thread, or to the device of the module that is being called.
    ``is_complete`` becomes False where a module runs in a thread whose operators are not seen.
    """

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._found: dict[int, tuple[torch.UntypedStorage, str]] = {}
        self._given: dict[int, torch.UntypedStorage] = {}  # kept, so that no other one gets its number
        self._called: dict[tuple[int, int | None], list[torch.device]] = {}
        self._hooks = ExitStack()
        self.is_complete = True

    def __enter__(self) -> "Activations":
        for module in self._placed.module.modules():
            before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(module.register_forward_hook(self._leave, always_call=True).remove)
        self._hooks.enter_context(saved_tensors_hooks(self._pack, lambda tensor: tensor))
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.close()

    def taken(self) -> _Bytes:
        """The bytes that are saved now, by device; what is saved later is counted from 0."""
        self._give(self._placed.module)
        sizes = _Bytes()
        for key, (storage, device) in self._found.items():
            if key not in self._given:
                sizes[device] += storage.nbytes()  # none of a parameter that FSDP has freed
        self._found.clear()
        self._given.clear()
        return sizes

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        device = devices.label(tensor.device if tensor.device != devices.HOST else self._device())
        for part in local_parts(tensor):
            storage = part.untyped_storage()
            self._found.setdefault(storage._cdata, (storage, device))
        return tensor

    def _device(self) -> torch.device:
        replica = devices.current_device()[0]
        called = self._called.get(_place())
        return replica or (called[-1] if called else self._placed.output_device)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is None:
            self.is_complete = False
        called = self._called.setdefault(_place(), [])
        if not called:
            self._give(module, *(each for each in tensors.walk((args, kwargs)) if not each.requires_grad))
        inherits = isinstance(module, Wrapper | DataParallel)
        called.append(self._device() if inherits else devices.placed_on(module))

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        self._called[_place()].pop()

    def _give(self, module: nn.Module, *inputs: torch.Tensor) -> None:
        """Leave out inputs, and the tensors of a module; those of a replica are attributes of its parts."""
        of_replica = (each for part in module.modules() for each in vars(part).values())
        given = [*inputs, *module.parameters(), *module.buffers(), *tensors.walk(list(of_replica))]
        storages = (part.untyped_storage() for each in given for part in local_parts(each))
        self._given |= {storage._cdata: storage for storage in storages}


def _place() -> tuple[int, int | None]:
    """The thread, and the replica that it computes."""
    return threading.get_ident(), devices.current_device()[1]


class StepProfile(StepObserver):
    """One step of a trainer, observed; ``note`` says why not, or what is not known.

    ``tokens`` counts those of a batch, for the losses that do.
    """

    def __init__(self, trainer: Trainer, tokens: Callable[[Batch], float | None]) -> None:
        self._trainer, self._placed, self._count_tokens = trainer, trainer.placed, tokens
        self._counted, self._saved = CountFlops(), Activations(trainer.placed)
        self._gradients, self._activations = _Bytes(), _Bytes()
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
            with self._counted, self._saved:
                self._trainer.step(batch, self)
        except Exception as error:  # of any kind: a user's model may not stand to be observed
            self.note = f"not observed: {describe(error)}"
            if not self._trainer.group.all_failed("profile", f"{describe(error)}, after {list(flops)}"):
                raise
            return
        if not self._saved.is_complete:
            self.note = "replicas computed in threads, where operators are not seen"

    def loss_ended(self, loss: torch.Tensor) -> None:
        self._activations = self._saved.taken()
        self._work["flops"]["forward"] = self._counted.total

    def backward_ended(self) -> None:
        self._gradients = gradient_bytes(self._placed)
        self._work["flops"]["backward"] = self._counted.total - self._work["flops"]["forward"]

    def work(self) -> Row:
        """``work`` of a Record, of this process: the FLOPs of its rows."""
        return {"note": self.note} if self.note else self._work

    def memory(self) -> list[Row]:
        """``memory_use`` of a Record, of this process: a row for each device."""
        use = resident(self._placed, self._trainer)
        if not self.note:
            use |= {"gradients": self._gradients, "activations": self._activations}
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

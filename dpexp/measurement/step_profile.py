"""Step profile: the memory of one further step, by device and category, and its floating-point operations.

    forward, loss -> activations      backward -> gradients      optimizer -> its state

The step comes last, after everything that a run records of its training, and so changes none of it. It is a
step like the others, except that its operators are observed and that replicas on the CPU compute one by one.
"""

from collections import Counter
from collections.abc import Callable

import torch

from dpexp import devices, tensors
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.measurement.live_storages import LiveStorages, storage_size
from dpexp.measurement.observe import device_map, device_of, optimizer_map
from dpexp.record.record import Row
from dpexp.strategies.modules import named_buffers, named_parameters, parts
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
        kept, _ = resident(self._placed, trainer)
        self._before = sum(kept.values(), gradient_bytes(self._placed))
        self._gradients, self._activations = _Bytes(), _Bytes()
        self._flops: dict[str, int] = {}
        self._not_counted: set[str] = set()
        self._rows = 0
        self._tokens: float | None = None
        self._live: LiveStorages | None = None
        self.note = ""

    def take(self, batch: Batch) -> None:
        """Take the step. An error in it is not one of the run, whose training is done: ``note`` has it.

        An error that not every rank has is raised: the others wait for this rank.
        """
        if is_compiled(self._placed.module):
            self.note = "not observed: operators of compiled modules are not seen"
            return
        self._rows = batch.global_rows
        self._tokens = self._count_tokens(batch)
        module, output = self._placed.module, self._placed.output_device
        given = [*named_parameters(module).values(), *named_buffers(module).values()]
        given += tensors.walk((batch.inputs, batch.targets))
        try:
            observed = LiveStorages(given, output, len(self._placed.devices) == 1)
            with observed as self._live:
                self._trainer.step(batch, self)
        except Exception as error:  # of any kind: a user's model may not stand to be observed
            self.note, self._live = f"not observed: {describe(error)}", None
            if not self._trainer.group.all_failed("profile", f"{describe(error)}, after {list(self._flops)}"):
                raise
            return
        if not self._live.is_complete:
            self.note, self._live = "replicas computed in threads, where operators are not seen", None

    def loss_ended(self, loss: torch.Tensor) -> None:
        assert self._live is not None
        self._activations = _Bytes(self._live.activations)
        self._flops["forward"] = self._live.flops
        self._not_counted = set(self._live.not_counted)

    def backward_ended(self) -> None:
        assert self._live is not None
        self._gradients = gradient_bytes(self._placed)
        self._flops["backward"] = self._live.flops - self._flops["forward"]
        self._not_counted = set(self._live.not_counted)  # without the optimizer's

    def work(self) -> Row:
        """``work`` of a Record, of this process: the FLOPs of its rows, and what is not in them."""
        if self.note:
            return {"note": self.note}
        counted = {"rows": self._rows, "flops": self._flops, "not_counted": sorted(self._not_counted)}
        return counted | ({} if self._tokens is None else {"tokens": self._tokens})

    def memory(self) -> list[Row]:
        """``memory_use`` of a Record, of this process: a row for each device."""
        kept, copies = resident(self._placed, self._trainer)
        use = {kind: kept[kind] + copies[kind] for kind in kept}
        if not self.note:
            use |= {"gradients": self._gradients, "activations": self._activations}
        peaks = self._peaks()
        used = {devices.label(each) for each in self._placed.devices}
        rows = {name: {kind: of_kind[name] for kind, of_kind in use.items()} for name in used}
        return [
            {"device": name, **rows.get(name, {}), **peaks.get(name, {})}
            for name in sorted(used | peaks.keys())
        ]

    def _peaks(self) -> dict[str, Row]:
        """``peak``, and ``reserved`` where known, by device; virtual devices together are the host."""
        found: dict[str, Row] = {}
        for device in self._placed.devices:
            if (statistics := devices.allocator_peaks(device)) is not None:
                found[devices.label(device)] = statistics
        on_cpu = [device for device in self._placed.devices if device.type == "cpu"]
        if self._live is not None and on_cpu:
            before = sum(self._before[devices.label(device)] for device in {*on_cpu, devices.HOST})
            name = devices.label(on_cpu[0] if len(on_cpu) == 1 else devices.HOST)
            found[name] = {"peak": before + self._live.peak[devices.label(devices.HOST)]}
        return found


def resident(placed: Placed, trainer: Trainer) -> tuple[dict[str, _Bytes], dict[str, _Bytes]]:
    """The bytes of parameters, buffers and optimizer state, by category, and of the copies in replicas."""
    names = {"parameter": "parameters", "buffer": "buffers", "optimizer": "optimizer"}
    kept, copies = ({name: _Bytes() for name in names.values()} for _ in range(2))
    states = trainer.optimizers.states() if trainer.optimizers is not None else ()
    for row in [*device_map(placed), *optimizer_map(placed, states)]:
        kept[names[row["kind"]]][row["device"]] += row["bytes"]
        copies[names[row["kind"]]].update(dict.fromkeys(row["replicas"], row["bytes"]))
    return kept, copies


def gradient_bytes(placed: Placed) -> _Bytes:
    """The bytes of the gradients that parameters have now: of a sparse one its indices and values."""
    found, seen = _Bytes(), set()
    for part in parts(placed.module):
        for parameter in part.module.parameters(recurse=False):
            if parameter.grad is not None and id(parameter) not in seen:
                found[devices.label(device_of(part, parameter))] += storage_size(parameter.grad)
                seen.add(id(parameter))
    return found

r"""``whole``, ``block``, ``functional``: DataParallel with its four steps timed.

    inputs --scatter--> 15 rows --> replica 0 on devices[0] --> 15 rows --gather--> outputs
                 \----> 15 rows --> replica 1 on devices[1] --> 15 rows --/
                        replicate          parallel_apply

``whole``: the whole model in DataParallel. ``block``: only the named submodules, the others on the first
device. ``functional``: ``data_parallel(module, inputs, devices)`` of PyTorch's tutorial, written out in
``DataParallelCall.forward`` below.

PyTorch's own classes compute on accelerators, dpexp.parallel's elsewhere. Both call ``self.scatter``,
``self.replicate``, ``self.parallel_apply`` and ``self.gather`` in their ``forward``, so that a subclass can
time the four and change nothing else. Autograd then adds up the gradients of the replicas.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpexp import parallel
from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import BlockOptions
from dpexp.config.words import plural
from dpexp.data.batch import Batch
from dpexp.devices import HOST, accelerators, is_autocast_enabled, is_virtual, place, running_on
from dpexp.parallel.replicate import explained_stops
from dpexp.parallel.scatter_gather import check_batch_sizes, is_container
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules import Wrapper, matching
from dpexp.strategies.placed import Placed
from dpexp.tensors import leaves, walk
from dpexp.timing import Timer


class Replicating(Strategy):
    """Base of the strategies that use DataParallel or its primitives."""

    needs = Needs(devices=True)

    def row_parts(self, devices: Devices) -> int:
        """One for each device of each rank."""
        return self.group.dp_size * max(1, len(devices))

    def check_rows(self, batch: Batch, devices: Devices) -> None:
        """Raises ConfigError, also for rows in a container that scatter does not enter."""
        batch.check_rows(self.row_parts(devices), splits_targets=self.group.dp_size > 1)
        inputs = leaves(batch.inputs, "inputs", lambda value: not is_container(value))
        for path, leaf in inputs if self.row_parts(devices) > 1 else ():
            inside = () if isinstance(leaf, Tensor) else walk(leaf)
            if any(each.shape[:1] == (batch.rows,) for each in inside):
                raise ConfigError(
                    f"{path} is of type {type(leaf).__name__}, and every replica gets it with all "
                    f"{plural(batch.rows, 'row')}: DataParallel splits tensors, and dicts, lists and tuples "
                    "of them. Give it as one of these; ddp and fsdp split it as it is"
                )

    def check_outputs(self, outputs: Any, batch: Batch, devices: Devices) -> None:
        """Raises ConfigError for outputs with their rows in dimension 1, as ``(layers, rows, …)``."""
        for path, leaf in leaves(outputs, "outputs") if self.row_parts(devices) > 1 else ():
            shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else ()
            if shape[1:2] == (batch.rows,) and shape[0] % batch.rows:
                raise ConfigError(
                    f"{path} has shape {shape}, with the {plural(batch.rows, 'row')} in dimension 1, as the "
                    "hidden state of an RNN has, and DataParallel joins what replicas return in dimension 0: "
                    "return x.transpose(0, 1), or do not return it"
                )

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Raises ConfigError for devices that the backend does not know."""
        uses_torch(self.backend, devices)  # raises ConfigError where it does not know the devices


@dataclass(frozen=True)
class Replica:
    """A call of one replica: labelled with its number and device, timed, and under the caller's autocast."""

    module: nn.Module
    number: int
    device: torch.device
    timer: Timer
    autocast_dtype: torch.dtype | None

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        kind, dtype = self.device.type, self.autocast_dtype
        autocast = nullcontext() if dtype is None else torch.autocast(kind, dtype=dtype)
        timed = self.timer.replica("parallel_apply", self.number, self.device)
        with running_on(self.device, self.number), timed, autocast:
            return self.module(*inputs, **kwargs)


def labelled(replicas: Sequence[nn.Module], devices: Devices, timer: Timer) -> list[Any]:
    """Calls of the replicas, for ``parallel_apply``; on the CPU that of dpexp labels them itself.

    ``torch.nn.parallel`` turns the caller's autocast on in its threads, but without the dtype.
    """
    if not timer.is_recording and all(device.type == "cpu" for device in devices):
        return list(replicas)
    kind = devices[0].type
    dtype = torch.get_autocast_dtype(kind) if is_autocast_enabled(kind) else None
    numbered = enumerate(zip(replicas, devices, strict=False))
    return [Replica(module, i, device, timer, dtype) for i, (module, device) in numbered]


def on_one_device(devices: Devices) -> running_on:
    """The label of a call without replicas, which DataParallel makes on one device, and on the host."""
    return running_on(devices[0], 0) if devices else running_on(HOST, None)


class _Timed(Wrapper):
    """The four steps as phases; the base class before a DataParallel class."""

    timer: Timer

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if len(self.replica_devices) > 1:
            return super().forward(*inputs, **kwargs)
        with self.timer.phase("forward"), on_one_device(self.replica_devices):
            return super().forward(*inputs, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("scatter"):
            return super().scatter(*args, **kwargs)  # type: ignore[misc]

    def replicate(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("replicate"):
            return super().replicate(*args, **kwargs)  # type: ignore[misc]

    def parallel_apply(self, replicas: Sequence[nn.Module], *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("parallel_apply"), explained_stops():
            calls = labelled(replicas, self.replica_devices, self.timer)
            return super().parallel_apply(calls, *args, **kwargs)  # type: ignore[misc]

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        with self.timer.phase("gather", self.replica_devices[0]):
            return super().gather(*args, **kwargs)  # type: ignore[misc]


class TorchDataParallel(_Timed, nn.DataParallel[nn.Module]):
    """``torch.nn.DataParallel``, timed. Raises ValueError for tensors of which it would drop rows."""

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Raises ValueError for different batch sizes, of which PyTorch drops rows."""
        check_batch_sizes(inputs, kwargs or {}, self.replica_devices)
        return super().scatter(inputs, kwargs, device_ids)


class PortableDataParallel(_Timed, parallel.DataParallel):
    """``dpexp.parallel.DataParallel``, timed."""


def data_parallel_module(module: nn.Module, devices: Devices, backend: str, timer: Timer) -> Wrapper:
    """The module, which must be on devices[0], in the DataParallel class that ``--backend`` names.

    Its outputs are gathered there. Without devices the wrapper calls the module itself, as PyTorch's does.
    """
    wrapper: _Timed
    if uses_torch(backend, devices):
        wrapper = TorchDataParallel(module, list(devices) or None)
    else:
        wrapper = PortableDataParallel(module, list(devices))
    wrapper.timer = timer
    wrapper.replica_devices = tuple(devices)
    return wrapper


def uses_torch(backend: str, devices: Devices) -> bool:
    """True if ``torch.nn.parallel`` computes: on accelerators, unless ``--backend portable``.

    Raises ConfigError for ``--backend torch`` on devices that torch.nn.parallel does not know.
    """
    foreign = [str(device) for device in devices if is_virtual(device) or device.type != "cuda"]
    if backend == "torch" and foreign:
        raise ConfigError(
            f"--backend torch: torch.nn.parallel works on CUDA devices, not on {', '.join(foreign)}; "
            "--backend portable does"
        )
    # Given no device, nn.DataParallel takes every accelerator of the machine.
    takes_accelerators = not devices and bool(accelerators())
    return backend != "portable" and not foreign and not takes_accelerators


class Whole(Replicating):
    """Every step copies the parameters to all devices, and splits the batch over them."""

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """DataParallel around the model, which is on the first device."""
        first = devices[0] if devices else HOST
        module = self.wrapped(place(model, first), devices, timer)
        return Placed(module, first, first, tuple(devices) or (HOST,), timer=timer, forward_phase="")

    def wrapped(self, model: nn.Module, devices: Devices, timer: Timer) -> Wrapper:
        """The model, which is on the first device, and computes on all."""
        return data_parallel_module(model, devices, self.backend, timer)


class Functional(Whole):
    """Each call makes new replicas and drops them; without devices it calls the module itself."""

    def wrapped(self, model: nn.Module, devices: Devices, timer: Timer) -> Wrapper:
        """The model in a module that calls the four primitives."""
        library = nn.parallel if uses_torch(self.backend, devices) else parallel
        return DataParallelCall(model, devices, library, timer)


class Block(Replicating):
    """Each named block scatters its inputs and gathers its outputs; other modules get the full batch.

    A block that the model itself has in ``nn.DataParallel``, as the tutorial writes it, is taken out of it.
    """

    options: BlockOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Take blocks out of the DataParallel of the model. Raises ConfigError for names it does not have."""
        super().prepare(model, devices)
        for name in matching(model, self.options.block, "--block"):
            module = model.get_submodule(name)
            if isinstance(module, nn.DataParallel):
                model.set_submodule(name, module.module)

    def row_parts(self, devices: Devices) -> int:
        """One: the model's own inputs are not split."""
        return 1  # of the model's own inputs

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """DataParallel around each named block, in place; all else on the first device."""
        first = devices[0] if devices else HOST
        place(model, first)
        for name in matching(model, self.options.block, "--block"):
            block = data_parallel_module(model.get_submodule(name), devices, self.backend, timer)
            model.set_submodule(name, block)
        return Placed(model, first, first, tuple(devices) or (HOST,), timer=timer)


class DataParallelCall(Wrapper):
    """A module whose forward is ``data_parallel(module, inputs, devices)``.

    The rows of the inputs are split over the devices. ``library`` has the primitives.
    """

    def __init__(self, module: nn.Module, devices: Devices, library: Any, timer: Timer) -> None:
        super().__init__()
        self.module, self.replica_devices, self.library = module, tuple(devices), library
        self.timer = timer

    def forward(self, *inputs: Any) -> Any:
        """Inputs and outputs ``(batch, …)``, on the first device."""
        devices, library, phase = self.replica_devices, self.library, self.timer.phase
        if len(devices) <= 1:
            with phase("forward"), on_one_device(devices):
                return self.module(*inputs)
        with phase("replicate"):
            replicas = library.replicate(self.module, devices)
        with phase("scatter"):
            chunks = library.scatter(inputs, devices)
        used = devices[: len(chunks)]
        with phase("parallel_apply"), explained_stops():
            calls = labelled(replicas[: len(used)], used, self.timer)
            outputs = library.parallel_apply(calls, chunks, devices=used)
        with phase("gather", devices[0]):
            return library.gather(outputs, devices[0])

"""DataParallel: scatter, replicate, parallel_apply, gather, as one module and as one function."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpexp.devices import accelerators, is_virtual, physical, place, placed_on, running_on
from dpexp.parallel.parallel_apply import parallel_apply
from dpexp.parallel.replicate import replicate
from dpexp.parallel.scatter_gather import DeviceId, gather, scatter_kwargs, to_device


def data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Sequence[DeviceId] | None = None,
    output_device: DeviceId | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """``module(*inputs, **module_kwargs)`` over the devices: DataParallel as a function.

    ``inputs`` is a tuple of positional arguments, the only argument, or None. ``device_ids`` are those of
    DataParallel.
    """
    if not isinstance(inputs, tuple):
        inputs = () if inputs is None else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*inputs, **(module_kwargs or {}))


class DataParallel(nn.Module):
    """A module whose every forward is spread over the devices: ``DataParallel(model, virtual(3))``.

    Same results as ``module(*inputs, **kwargs)``, computed by the four methods below, which a subclass may
    override, for example to time them. The default of ``device_ids`` is every accelerator. Without any
    device it calls the module itself. With one device it moves the module there and makes no replicas.

    Differences to a call of the module, by definition: BatchNorm in training normalizes with its replica's
    rows, and only replica 0 updates the running statistics; state that a forward writes to attributes
    is lost with the replica; a scalar output comes back as a vector.

    Raises RuntimeError if the module is not on ``device_ids[0]``, and what the four raise.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[DeviceId] | None = None,
        output_device: DeviceId | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.dim = dim
        self.device_ids = list(map(to_device, accelerators() if device_ids is None else device_ids))
        self._threads = Threads(len(self.device_ids))
        if not self.device_ids:
            return
        self.src_device_obj = self.device_ids[0]
        self.output_device = self.src_device_obj if output_device is None else to_device(output_device)
        if len(self.device_ids) == 1:
            place(module, self.src_device_obj)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """``(batch, …)`` on any device to ``(batch, …)`` on the output device."""
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        _check_module_device(self.module, self.src_device_obj)
        args, module_kwargs = self.scatter(inputs, kwargs, self.device_ids)
        if not args:  # a module without any input runs once, on the first device
            args, module_kwargs = ((),), ({},)
        if len(self.device_ids) == 1:
            with running_on(self.src_device_obj, 0):
                return self.module(*args[0], **module_kwargs[0])
        replicas = self.replicate(self.module, self.device_ids[: len(args)])
        outputs = self.parallel_apply(replicas, args, module_kwargs)
        return self.gather(outputs, self.output_device)

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[DeviceId]
    ) -> Any:
        """A chunk ``(rows, …)`` of the arguments for each device: see ``scatter_kwargs``."""
        return scatter_kwargs(inputs, kwargs, device_ids, dim=self.dim)

    def replicate(self, module: nn.Module, device_ids: Sequence[DeviceId]) -> list[nn.Module]:
        """A replica for each device: see ``replicate``."""
        return replicate(module, device_ids, not torch.is_grad_enabled())

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        """Each replica's outputs ``(rows, …)``: see ``parallel_apply``."""
        with self._threads.executor() as executor:
            return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)], executor)

    def gather(self, outputs: Any, output_device: DeviceId) -> Any:
        """``(batch, …)`` on the output device: see ``gather``."""
        return gather(outputs, output_device, dim=self.dim)


class Threads:
    """The threads of a DataParallel, kept between its forwards; a copied or pickled one has its own.

    Forwards at the same time, as those of a DataParallel inside of replicas, have an executor each.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: dict[int, list[ThreadPoolExecutor]] = {}  # by process: a forked one has no threads yet

    @contextmanager
    def executor(self) -> Iterator[ThreadPoolExecutor]:
        """One that no other forward uses until this context ends."""
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            executor = idle.pop()
        except IndexError:
            executor = ThreadPoolExecutor(self._count, "dpexp replica")
        yield executor
        idle.append(executor)

    def __reduce__(self) -> Any:
        return Threads, (self._count,)


def _check_module_device(module: nn.Module, expected: torch.device) -> None:
    """Raise RuntimeError unless every parameter and buffer is on the device.

    For virtual devices the label that ``devices.place`` gave to the module counts.
    """
    for name, part in module.named_modules():
        labelled = placed_on(part)
        for key, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is None:
                continue
            found = labelled if is_virtual(labelled) and tensor.device.type == "cpu" else tensor.device
            if found != expected and (is_virtual(found) or found != physical(expected)):
                raise RuntimeError(
                    f"module must have its parameters and buffers on device {expected} (device_ids[0]) "
                    f"but found '{name + '.' * bool(name) + key}' on device {found}: "
                    f"dpexp.devices.place(module, torch.device('{expected}')) moves it there"
                )

"""Parallel apply: every replica computes its chunk of the batch in a thread.

::

    caller      thread            thread
      ├─ chunk 1 ──►│
      ├─ chunk 2 ───┼────────────────►│
    forward 0     forward 1         forward 2
      │◄────────────┴─────────────────┘
    outputs, or the first replica's exception

There are as many threads as replicas, so replicas that wait for each other do not hang. On the CPU they
share the caller's intra-op threads. Each has the state of the caller's thread.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from dpexp.devices import HOST, is_autocast_enabled, label, physical, running_on
from dpexp.parallel.random_layers import draws_random_numbers
from dpexp.parallel.replicate import explained_stops
from dpexp.parallel.scatter_gather import DeviceId, to_device
from dpexp.tensors import walk


def parallel_apply(
    modules: Sequence[nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[DeviceId | None] | None = None,
    executor: Executor | None = None,
) -> list[Any]:
    """``[module(*input, **kwargs), …]``, in parallel, each on its device.

    An input is a tuple or list of positional arguments, or the only argument. Without ``devices`` a
    module computes on the device of its first input tensor. The first module computes in the caller's
    thread, the others in the ``executor``, which must have a thread for each; without one, in new threads.
    Replicas that draw random numbers from one generator, or are in a checkpoint, compute one after another in
    the caller's thread.

    When a replica raises, the others finish first. Then the first one's exception is raised here, with a
    note of the replica and its device. Raises ValueError where the sequences differ in length.
    """
    count = len(modules)
    kwargs_tup, devices = kwargs_tup or [{}] * count, devices or [None] * count
    calls = list(zip(modules, inputs, kwargs_tup, strict=True))
    device_of = [
        next((tensor.device for tensor in walk(input)), HOST) if device is None else to_device(device)
        for input, device in zip(inputs, devices, strict=True)
    ]
    streams = [
        nullcontext() if device.type in ("cpu", "meta") else torch.accelerator.current_stream(device)
        for device in device_of
    ]
    grad, outputs = torch.is_grad_enabled(), [None] * count
    errors: dict[int, BaseException] = {}

    def forward(replica: int) -> None:
        module, input, kwargs = calls[replica]
        args = input if isinstance(input, list | tuple) else (input,)
        with running_on(device_of[replica], replica), streams[replica], torch.set_grad_enabled(grad):
            try:
                with explained_stops():
                    outputs[replica] = module(*args, **kwargs)
            except BaseException as error:  # of any kind: it is raised again in the caller's thread
                errors[replica] = error

    # forwards compute at once and share the threads; loss and backward have all, since autograd computes the
    # replicas of the CPU one after the other
    on_cpu = sum(device.type == "cpu" for device in device_of)
    with intra_op_threads(max(1, torch.get_num_threads() // max(1, on_cpu))):
        if count < 2 or _in_order(modules[0], device_of):
            for replica in range(count):
                forward(replica)
        else:
            with nullcontext(executor) if executor else ThreadPoolExecutor(count) as threads:
                _in_threads(forward, device_of, threads)
    if errors:
        _raise_first(errors, device_of)
    return outputs


def _raise_first(errors: dict[int, BaseException], devices: Sequence[torch.device]) -> NoReturn:
    replica = min(errors)
    error = errors[replica]
    error.add_note(f"Caught in replica {replica} on device {label(devices[replica])}.")
    errors.clear()
    try:
        raise error
    finally:
        del error  # the traceback refers to this frame: its variable would close a cycle


def _in_order(module: nn.Module, devices: Sequence[torch.device]) -> bool:
    """Whether replicas draw from one generator, or need a state that only the caller's thread has.

    Those are the mode of fake tensors, and hooks of what is saved for backward, which a checkpoint numbers.
    """
    shares_generator = len(set(map(physical, devices))) < len(devices)
    is_fake = any(hasattr(mode, "_mode_key") for mode in _get_current_dispatch_mode_stack())
    has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return is_fake or has_hooks or (shares_generator and draws_random_numbers(module))


def _in_threads(forward: Callable[[int], None], devices: Sequence[torch.device], executor: Executor) -> None:
    modes, lock = _get_current_dispatch_mode_stack(), threading.RLock()
    state = _state_of_this_thread(devices, modes)

    def compute(replica: int) -> None:
        with _OneAtATime(lock) if modes else nullcontext():
            forward(replica)

    def compute_in_thread(replica: int) -> None:
        with state():
            compute(replica)

    futures = [executor.submit(compute_in_thread, i) for i in range(1, len(devices))]
    compute(0)
    for future in futures:
        future.result()


def _state_of_this_thread(
    devices: Sequence[torch.device], modes: list[Any]
) -> Callable[[], AbstractContextManager[object]]:
    """A function that gives the thread that calls it this one's state, until its context ends."""
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    kinds = {"cpu", *(device.type for device in devices)}
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if is_autocast_enabled(kind)]

    @contextmanager
    def state() -> Iterator[None]:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with ExitStack() as stack:
            if inference:
                stack.enter_context(torch.inference_mode())
            for kind, dtype in autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            for mode in modes:  # their __enter__ is for one thread
                _push_mode(mode)
                stack.callback(_pop_mode)
            yield

    return state


class _OneAtATime(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Above the caller's dispatch modes in each replica: they see one operation at a time."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: else the first operator imports ``torch._dynamo``, which takes a second."""
        return False

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lock = lock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._lock:
            return func(*args, **(kwargs or {}))


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Inside, this thread has so many intra-op threads, and so have threads that start meanwhile."""
    threads = torch.get_num_threads()
    if count != threads:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != threads:
            torch.set_num_threads(threads)

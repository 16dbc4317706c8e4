"""Parallel apply: every replica computes its chunk of the batch in a thread of its device.

::

    caller      worker of cuda:0  worker of cuda:1  worker of cuda:2
      ├─ chunk 0 ──►│
      ├─ chunk 1 ───┼───────────────►│
      ├─ chunk 2 ───┼────────────────┼───────────────►│
    waits         forward          forward          forward
      │◄────────────┴────────────────┴────────────────┘
    outputs, or the first replica's exception

On the CPU as many replicas compute at a time as there are cores, one of them in the caller's thread, and
share the caller's intra-op threads. A worker takes over the thread-local state of the caller: grad mode,
inference mode, autocast with its dtype, the default device, the current stream of the device, context
variables. The workers outlive the call (thread_pool.py).
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch._utils import KeyErrorMessage
from torch.utils import _python_dispatch

from dpexp.config.errors import plural
from dpexp.devices import HOST, label, running_on
from dpexp.parallel.device_ids import DeviceId, to_device
from dpexp.parallel.rng_order import RngOrder, draws_random_numbers
from dpexp.parallel.thread_pool import thread_pool
from dpexp.tensors import walk


def parallel_apply(
    modules: Sequence[nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[DeviceId | None] | None = None,
) -> list[Any]:
    """``[module(*input, **kwargs), …]``, in parallel, each on its device (in order if rng_order.py says so).

    An input is a tuple or list of positional arguments, or the only argument. Without ``devices`` a
    module computes on the device of its first input tensor. A single module runs in the caller's thread.

    When a replica raises, the others finish first. Then the first one's exception is raised here: the same
    type, with the replica and its device in the message and the original as ``__cause__``.
    Raises ValueError where the sequences differ in length.
    """
    count = len(modules)
    _check_lengths(count, inputs=inputs, kwargs_tup=kwargs_tup, devices=devices)
    kwargs = kwargs_tup if kwargs_tup is not None else [{}] * count
    device_of = [
        _input_device(input) if device is None else to_device(device)
        for input, device in zip(inputs, devices if devices is not None else [None] * count, strict=True)
    ]
    outputs: list[Any] = [None] * count
    errors: dict[int, BaseException] = {}

    def forward(replica: int) -> None:
        args = inputs[replica] if isinstance(inputs[replica], list | tuple) else (inputs[replica],)
        with running_on(device_of[replica], replica):
            try:
                outputs[replica] = modules[replica](*args, **kwargs[replica])
            except BaseException as error:  # of any kind: it is raised again in the caller's thread
                errors[replica] = error

    in_order = count > 1 and draws_random_numbers(modules[0])
    _run(RngOrder(device_of).ordered(forward) if in_order else forward, device_of)
    _raise_first(errors, device_of)
    return outputs


def _check_lengths(count: int, **sequences: Sequence[Any] | None) -> None:
    for name, sequence in sequences.items():
        if sequence is not None and len(sequence) != count:
            raise ValueError(
                f"{plural(count, 'module')} but {len(sequence)} {name}: there must be one for each module"
            )


def _run(forward: Callable[[int], None], devices: Sequence[torch.device]) -> None:
    """Call ``forward(replica)`` for each device, in its thread; that of an only one in this thread."""
    if len(devices) <= 1:
        for replica in range(len(devices)):
            forward(replica)
        return
    with share_of_threads(devices) as threads:
        state, one_by_one = _state(devices, threads), _is_observed(devices)
        thread_pool().run(devices, _tasks(forward, devices), state, one_by_one=one_by_one)


def _is_observed(devices: Sequence[torch.device]) -> bool:
    """Whether a dispatch mode (FlopCounterMode, FakeTensorMode) observes the operations of this thread, or
    hooks (those of torch.utils.checkpoint) what they save for backward.

    Replicas on the CPU then compute one by one in this thread, so that it sees one at a time. Only where one
    waits for another do they get a worker, which has the mode too.
    """
    mode = _python_dispatch._get_current_dispatch_mode()
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (mode or hooks) is not None and all(device.type == "cpu" for device in devices)


def _input_device(value: Any) -> torch.device:
    """The device of the first tensor in the pytree; the host if there is none."""
    first = next(walk(value), None)
    return HOST if first is None else first.device


def _tasks(forward: Callable[[int], None], devices: Sequence[torch.device]) -> list[Callable[[], None]]:
    """``forward(replica)`` as a task for each replica, with this thread's grad mode, stream and context."""
    grad = torch.is_grad_enabled()

    def run(replica: int, stream: torch.Stream | None, context: contextvars.Context) -> None:
        if torch.is_grad_enabled() != grad:  # changed by the replica before it
            torch.set_grad_enabled(grad)
        if stream is not None:
            torch.accelerator.set_stream(stream)  # and the stream's device
        context.run(forward, replica)

    return [
        functools.partial(run, replica, _current_stream(device), contextvars.copy_context())
        for replica, device in enumerate(devices)
    ]


def _state(devices: Sequence[torch.device], threads: int) -> Callable[[], AbstractContextManager[object]]:
    """A function that gives the thread that calls it this one's state: threads, modes, default device."""
    inference = torch.is_inference_mode_enabled()
    kinds = {"cpu", *(device.type for device in devices)}
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if is_autocast_enabled(kind)]
    cache_enabled = torch.is_autocast_cache_enabled()
    default_device = torch.get_default_device()
    observers = _python_dispatch._get_current_dispatch_mode_stack()

    def enter() -> AbstractContextManager[object]:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        modes = contextlib.ExitStack()
        if inference:
            modes.enter_context(torch.inference_mode())
        for kind, dtype in autocast:
            modes.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache_enabled))
        if default_device != torch.get_default_device():
            modes.enter_context(default_device)
        for mode in observers:  # their __enter__ is for one thread
            _python_dispatch._push_mode(mode)
            modes.callback(_python_dispatch._pop_mode, getattr(mode, "_mode_key", None))
        return modes

    return enter


def is_autocast_enabled(kind: str) -> bool:
    """Whether this thread computes under autocast on devices of this kind."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _current_stream(device: torch.device) -> torch.Stream | None:
    return None if device.type in ("cpu", "meta") else torch.accelerator.current_stream(device)


@contextlib.contextmanager
def share_of_threads(devices: Sequence[torch.device]) -> Iterator[int]:
    """Inside, this thread has the intra-op threads of one replica on the CPU; gives their number.

    What a worker or this thread sets is also the default of threads that start later, so the end restores it.
    """
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    share = max(1, threads // max(1, sum(device.type == "cpu" for device in devices)))
    try:
        with intra_op_threads(share):
            yield share
    finally:
        if torch.is_grad_enabled() != grad:  # changed by a replica in this thread
            torch.set_grad_enabled(grad)


@contextlib.contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Inside, this thread has so many intra-op threads."""
    threads = torch.get_num_threads()
    if count != threads:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != threads:
            torch.set_num_threads(threads)


def _raise_first(errors: dict[int, BaseException], devices: Sequence[torch.device]) -> None:
    """Raise the exception of the first replica that has one, with the replica and its device in it."""
    if not errors:
        return
    replica, *others = sorted(errors)
    error = errors[replica]
    located = _located(error, f"replica {replica} on device {label(devices[replica])}")
    if others:
        located.add_note(f"replicas {', '.join(map(str, others))} raised as well")
    errors.clear()
    try:
        raise located from (error if located is not error else error.__cause__)
    finally:
        del error, located  # the traceback refers to this frame: its variables would close a cycle


def _located(error: BaseException, where: str) -> BaseException:
    """An exception of the same type with ``where`` in its message.

    One that takes other arguments than a message, or that is not an Exception, gets a note instead.
    """
    if isinstance(error, Exception):
        try:
            return type(error)(KeyErrorMessage(f"Caught {type(error).__name__} in {where}.\n{error}"))
        except Exception:
            pass
    error.add_note(f"Caught in {where}.")
    return error

"""Parallel apply: every replica computes its chunk of the batch in a thread.

::

    caller      worker            worker
      ├─ chunk 1 ──►│
      ├─ chunk 2 ───┼────────────────►│
    forward 0     forward 1         forward 2
      │◄────────────┴─────────────────┘
    outputs, or the first replica's exception

There are as many threads as replicas, so replicas that wait for each other do not hang. On the CPU they
share the caller's intra-op threads. Replicas that draw random numbers from one generator compute one after
another in the caller's thread instead (random_layers.py).
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._utils import KeyErrorMessage
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.config.errors import plural
from dpexp.devices import HOST, label, physical, running_on
from dpexp.parallel.random_layers import draws_random_numbers
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

    When a replica raises, the others finish first. Then the first one's exception is raised here: the same
    type, with the replica and its device in the message and the original as ``__cause__``.
    Raises ValueError where the sequences differ in length.
    """
    count = len(modules)
    for name, sequence in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if sequence is not None and len(sequence) != count:
            raise ValueError(
                f"{plural(count, 'module')} but {len(sequence)} {name}: there must be one for each module"
            )
    kwargs = kwargs_tup if kwargs_tup is not None else [{}] * count
    device_of = [
        _input_device(input) if device is None else to_device(device)
        for input, device in zip(inputs, devices if devices is not None else [None] * count, strict=True)
    ]
    streams = list(map(_current_stream, device_of))
    outputs: list[Any] = [None] * count
    errors: dict[int, BaseException] = {}

    def forward(replica: int) -> None:
        args = inputs[replica] if isinstance(inputs[replica], list | tuple) else (inputs[replica],)
        with running_on(device_of[replica], replica), streams[replica]:
            try:
                outputs[replica] = modules[replica](*args, **kwargs[replica])
            except BaseException as error:  # of any kind: it is raised again in the caller's thread
                errors[replica] = error

    with share_of_threads(device_of):
        if count < 2 or _in_order(modules[0], device_of):
            for replica in range(count):
                forward(replica)
        elif executor is not None:
            _in_threads(forward, device_of, executor)
        else:
            with ThreadPoolExecutor(count) as executor:
                _in_threads(forward, device_of, executor)
    _raise_first(errors, device_of)
    return outputs


def _input_device(value: Any) -> torch.device:
    """The device of the first tensor in the pytree; the host if there is none."""
    first = next(walk(value), None)
    return HOST if first is None else first.device


def _current_stream(device: torch.device) -> AbstractContextManager[object]:
    """Inside, a thread has this thread's stream of the device, and the device is its current one."""
    return nullcontext() if device.type in ("cpu", "meta") else torch.accelerator.current_stream(device)


def _in_order(module: nn.Module, devices: Sequence[torch.device]) -> bool:
    """Whether replicas draw from one generator, or have fake tensors, whose mode is of one thread."""
    shares_generator = len({physical(device) for device in devices}) < len(devices)
    modes = _python_dispatch._get_current_dispatch_mode_stack()
    return (shares_generator and draws_random_numbers(module)) or any(hasattr(m, "_mode_key") for m in modes)


def _in_threads(forward: Callable[[int], None], devices: Sequence[torch.device], executor: Executor) -> None:
    """Call ``forward(replica)`` for each device: of the first here, of the others in the executor."""
    state, saved = _state_of_this_thread(devices), [SavedTensors() for _ in devices]

    def run(replica: int) -> None:
        with state(), saved[replica].hooks():
            forward(replica)

    futures = [executor.submit(contextvars.copy_context().run, run, i) for i in range(1, len(devices))]
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        contextvars.copy_context().run(forward, 0)
    for replica, future in enumerate(futures, 1):
        future.result()
        with running_on(devices[replica], replica):
            saved[replica].pack()


def _state_of_this_thread(devices: Sequence[torch.device]) -> Callable[[], AbstractContextManager[object]]:
    """A function that gives the thread that calls it this one's state, until its context ends."""
    threads, grad, inference = (
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )
    kinds = {"cpu", *(device.type for device in devices)}
    autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if is_autocast_enabled(kind)]
    cache_enabled = torch.is_autocast_cache_enabled()
    default_device = torch.get_default_device()
    modes, lock = _python_dispatch._get_current_dispatch_mode_stack(), threading.RLock()

    @contextmanager
    def state() -> Iterator[None]:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with ExitStack() as stack:
            if inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype in autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache_enabled))
            if default_device != HOST:
                stack.enter_context(default_device)
            for mode in modes:  # their __enter__ is for one thread
                _python_dispatch._push_mode(mode)
                stack.callback(_python_dispatch._pop_mode)
            if modes:
                stack.enter_context(OneAtATime(lock))
            yield

    return state


class SavedTensors:
    """What a replica saves for backward where the caller has hooks on it, as torch.utils.checkpoint has.

    Such hooks may number what they get. So the caller packs it, in the order of the replicas.
    """

    def __init__(self) -> None:
        self._hooks_of_caller = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._saved: list[list[Any]] = []

    def hooks(self) -> AbstractContextManager[object]:
        """Inside, a thread saves here, if this object was made under hooks."""
        if self._hooks_of_caller is None:
            return nullcontext()
        return saved_tensors_hooks(self._save, lambda saved: saved[0](saved[1]))

    def _save(self, tensor: torch.Tensor) -> list[Any]:
        self._saved.append([lambda tensor: tensor, tensor])
        return self._saved[-1]

    def pack(self) -> None:
        """Call the caller's hook on each tensor."""
        for saved in self._saved:
            pack, unpack = self._hooks_of_caller
            saved[:] = unpack, pack(saved[1])
        self._saved.clear()


class OneAtATime(TorchDispatchMode):  # type: ignore[no-untyped-call]
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


def is_autocast_enabled(kind: str) -> bool:
    """Whether this thread computes under autocast on devices of this kind."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


@contextmanager
def share_of_threads(devices: Sequence[torch.device]) -> Iterator[None]:
    """Inside, this thread has the intra-op threads of one replica on the CPU."""
    on_cpu = sum(device.type == "cpu" for device in devices)
    with intra_op_threads(max(1, torch.get_num_threads() // max(1, on_cpu))):
        yield


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

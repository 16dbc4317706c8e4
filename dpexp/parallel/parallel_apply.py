"""Parallel apply: every replica computes its piece in a worker thread of its own.

::

    caller      worker of cpu:0   worker of cpu:1   worker of cpu:2
      ├─ piece 0 ──►│
      ├─ piece 1 ───┼───────────────►│
      ├─ piece 2 ───┼────────────────┼───────────────►│
    waits         forward          forward          forward
      │◄────────────┴────────────────┴────────────────┘
    outputs, or the first replica's exception

What PyTorch keeps by thread travels with the piece: grad mode, inference mode, autocast with its
dtype, the default device, the current stream of the device, context variables. The workers (workers.py)
outlive the call. On the CPU the replicas share the caller's intra-op threads between them.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp.devices import HOST, label, on
from dpexp.parallel.device_ids import Target, target
from dpexp.parallel.rng_order import RngOrder, draws_random_numbers
from dpexp.parallel.thread_pool import is_worker, run_all

_changed = threading.Event()
"""Set where a worker changed its number of threads, and so the whole process's default."""


def parallel_apply(
    modules: Sequence[nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Target | None] | None = None,
) -> list[Any]:
    """``[module(*input, **kwargs), …]``, all at once, each on its device (in turns.py's cases in turn).

    An input is a tuple or list of positional arguments, or the only argument. Without ``devices`` a
    module computes where its first input tensor lies. A single module is called in the caller's thread.

    When a replica raises, the others finish first; then the first one's exception is raised here:
    same type, the replica and its device in the message, the original as ``__cause__``.
    Raises ValueError where the sequences differ in length.
    """
    count = len(modules)
    for name, sequence in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if sequence is not None and len(sequence) != count:
            raise ValueError(f"{count} modules but {len(sequence)} {name}: there must be one for each module")
    wanted = devices if devices is not None else [None] * count
    where = [
        _place(input) if device is None else target(device)
        for input, device in zip(inputs, wanted, strict=True)
    ]
    kwargs = kwargs_tup if kwargs_tup is not None else [{}] * count
    outcomes: list[ReplicaResult] = [ReplicaResult() for _ in range(count)]
    rng_order = RngOrder(where) if count > 1 and draws_random_numbers(modules[0]) else None

    def forward(replica: int) -> None:
        args = inputs[replica] if isinstance(inputs[replica], list | tuple) else (inputs[replica],)
        turn = rng_order.after_previous(replica) if rng_order is not None else contextlib.nullcontext()
        with turn, on(where[replica], replica):
            try:
                outcomes[replica].output = modules[replica](*args, **kwargs[replica])
            except BaseException as error:  # of any kind: it is raised again in the caller's thread
                outcomes[replica].error = error

    if count <= 1 or _is_watched(where):
        for replica in range(count):
            forward(replica)
    else:
        caller = CallerState.of(where)
        try:
            run_all(where, [caller.enter(forward, replica) for replica in range(count)])
        finally:
            caller.restore_threads()
    _raise_first(outcomes, where)
    return [outcome.output for outcome in outcomes]


@dataclass
class ReplicaResult:
    """What a replica's forward returned or raised."""

    output: Any = None
    error: BaseException | None = None


def _is_watched(devices: Sequence[torch.device]) -> bool:
    """Inside a dispatch mode (FlopCounterMode, FakeTensorMode), which sees its own thread's operations only.

    Replicas that all compute on the CPU then do so in the caller's thread, one after the other.
    """
    watching = torch.utils._python_dispatch._get_current_dispatch_mode() is not None
    return watching and all(device.type == "cpu" for device in devices)


def _place(value: Any) -> torch.device:
    """The device of the first tensor in the nested value; the host where there is none."""
    found = _first_tensor(value)
    return HOST if found is None else found.device


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((tensor for tensor in map(_first_tensor, inner) if tensor is not None), None)


# --- what travels with a piece -------------------------------------------------------------------


@dataclass(frozen=True)
class CallerState:
    """What PyTorch keeps by thread, as the caller had it."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    default_device: torch.device
    streams: tuple[torch.Stream | None, ...]
    threads: int
    share: int

    @classmethod
    def of(cls, devices: Sequence[torch.device]) -> CallerState:
        """The state of this thread, for replicas on these devices."""
        kinds = filter(
            torch.amp.is_autocast_available, dict.fromkeys(["cpu", *(device.type for device in devices)])
        )
        on_cpu = sum(device.type == "cpu" for device in devices)
        threads = torch.get_num_threads()
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple(
                (kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)
            ),
            autocast_cache=torch.is_autocast_cache_enabled(),
            default_device=torch.get_default_device(),
            streams=tuple(
                None if device.type in ("cpu", "meta") else torch.accelerator.current_stream(device)
                for device in devices
            ),
            threads=threads,
            share=max(1, threads // max(1, on_cpu)),
        )

    def enter(self, forward: Callable[[int], None], replica: int) -> Callable[[], None]:
        """``forward(replica)`` as a task for a worker thread, in which this state then holds."""
        context = contextvars.copy_context()

        def task() -> None:
            torch.set_grad_enabled(self.grad)
            if torch.get_num_threads() != self.share:
                _changed.set()
                torch.set_num_threads(self.share)
            stream = self.streams[replica]
            if stream is not None:
                torch.accelerator.set_stream(stream)  # and the stream's device
            with contextlib.ExitStack() as modes:
                if self.inference:
                    modes.enter_context(torch.inference_mode())
                for kind, dtype in self.autocast:
                    modes.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.autocast_cache))
                if self.default_device != torch.get_default_device():
                    modes.enter_context(self.default_device)
                context.run(forward, replica)

        return task

    def restore_threads(self) -> None:
        """Undo in the caller's thread what a worker's ``set_num_threads`` did to the whole process.

        It holds for the worker alone, but is also the default of threads that start later. Done by the
        outermost call, and only where there is something to undo: torch forgets all compiled convolutions
        at each call.
        """
        if _changed.is_set() and not is_worker():
            _changed.clear()
            torch.set_num_threads(self.threads)


# --- exceptions ----------------------------------------------------------------------------------


def _raise_first(outcomes: Sequence[ReplicaResult], devices: Sequence[torch.device]) -> None:
    """Raise the exception of the first replica that has one, with the replica and its device in it."""
    failed = [replica for replica, outcome in enumerate(outcomes) if outcome.error is not None]
    if not failed:
        return
    replica = failed[0]
    error = outcomes[replica].error
    assert error is not None
    told = _told(error, f"replica {replica} on device {label(devices[replica])}")
    if failed[1:]:
        told.add_note(f"replicas {', '.join(map(str, failed[1:]))} raised as well")
    for outcome in outcomes:
        outcome.error = None
    try:
        raise told from (error if told is not error else error.__cause__)
    finally:
        del error, told  # the traceback holds this frame: its holding them would be a reference cycle


def _told(error: BaseException, where: str) -> BaseException:
    """An exception of the same type with ``where`` in its message.

    One that cannot be made from a message (it takes other arguments), or that is no error (an exit),
    stays itself and gets a note.
    """
    if isinstance(error, Exception):
        try:
            return type(error)(_Message(f"Caught {type(error).__name__} in {where}.\n{error}"))
        except Exception:
            pass
    error.add_note(f"Caught in {where}.")
    return error


class _Message(str):
    """Text that KeyError, which shows the repr of its argument, shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

"""parallel_apply and its workers: thread-local state, exceptions, and threads that are reused."""

import contextvars
import gc
import multiprocessing
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dpexp.config.process import cores
from dpexp.devices import HOST, current_device, virtual
from dpexp.parallel import DataParallel, parallel_apply


class Call(nn.Module):
    """Its forward is the function that it was made from."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def apply(function: Callable[..., Any], count: int = 3, **kwargs: Any) -> list[Any]:
    """What the function returns in each of ``count`` replicas."""
    return parallel_apply([Call(function)] * count, [()] * count, [kwargs] * count, virtual(count))


def apart(function: Callable[..., Any]) -> list[Any]:
    """What it returns in two replicas that wait for each other: one of them computes in a worker.

    Small replicas all compute in the caller's thread otherwise, whose state needs no taking over.
    """
    barrier = threading.Barrier(2, timeout=1000)

    def forward() -> Any:
        barrier.wait()
        return threading.get_ident(), function()

    threads, found = zip(*apply(forward, count=2), strict=True)
    assert len(set(threads)) == 2
    return list(found)


@pytest.mark.parametrize("devices", [virtual(2), ["cpu:0", "cpu:1"], [None, None], None])
def test_an_input_is_a_tuple_of_arguments_or_the_only_argument(devices: Any) -> None:
    layers = [nn.Linear(10, 5), nn.Linear(10, 5)]
    x, y = torch.randn(2, 10), torch.randn(3, 10)
    expected = [layers[0](x), layers[1](y)]
    for inputs in ([(x,), (y,)], [x, y], [[x], [y]]):
        for found, wanted in zip(parallel_apply(layers, inputs, None, devices), expected, strict=True):
            assert torch.equal(found, wanted)


def test_without_devices_a_replica_computes_on_the_device_of_its_input() -> None:
    nested = {"a": [None, (3, torch.zeros(1))]}
    assert parallel_apply([Call(lambda *_: current_device())] * 2, [(nested,), (5,)]) == [
        (HOST, 0),
        (HOST, 1),
    ]


def test_every_replica_knows_its_device_and_number() -> None:
    assert apply(current_device) == [(device, i) for i, device in enumerate(virtual(3))]
    assert apply(current_device, count=1) == [(torch.device("cpu", 0), 0)]
    assert current_device() == (None, None)


def test_replicas_run_at_the_same_time() -> None:
    barrier = threading.Barrier(2, timeout=1000)
    apply(barrier.wait, count=2)


def test_replicas_that_wait_for_each_other_outnumber_the_cores_and_do_not_hang() -> None:
    barrier = threading.Barrier(cores() + 2, timeout=1000)
    for _ in range(2):
        assert sorted(apply(barrier.wait, count=cores() + 2)) == list(range(cores() + 2))


def test_nested_replicas_that_wait_for_each_other_do_not_hang() -> None:
    barrier = threading.Barrier(4 * cores(), timeout=1000)

    def inner() -> int:
        return len(apply(barrier.wait, count=4))

    assert apply(inner, count=cores()) == [4] * cores()


@pytest.mark.parametrize("grad", [True, False])
def test_workers_take_over_grad_mode(grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        assert apart(torch.is_grad_enabled) == [grad] * 2


def test_workers_take_over_inference_mode() -> None:
    with torch.inference_mode():
        assert apart(torch.is_inference_mode_enabled) == [True] * 2
        assert DataParallel(nn.Linear(2, 2), virtual(2))(torch.zeros(4, 2)).is_inference()
    assert apart(torch.is_inference_mode_enabled) == [False] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache", [True, False])
def test_workers_take_over_autocast_with_its_dtype_and_cache(dtype: torch.dtype, cache: bool) -> None:
    def state() -> tuple[bool, torch.dtype, bool]:
        return (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )

    with torch.autocast("cpu", dtype=dtype, cache_enabled=cache):
        assert apart(state) == [(True, dtype, cache)] * 2
        assert apart(lambda: (torch.ones(2, 2) @ torch.ones(2, 2)).dtype) == [dtype] * 2
    assert not any(apart(lambda: torch.is_autocast_enabled("cpu")))


def test_workers_take_over_the_default_device() -> None:
    with torch.device("meta"):
        assert apart(lambda: torch.zeros(1).device.type) == ["meta"] * 2
    assert apart(lambda: torch.zeros(1).device.type) == ["cpu"] * 2


def test_workers_copy_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("caller's")
    assert apart(variable.get) == ["caller's"] * 2
    apart(lambda: variable.set("replica's"))
    assert variable.get() == "caller's"


def test_a_replicas_changes_to_its_thread_end_with_the_forward() -> None:
    apart(lambda: torch.set_grad_enabled(False))
    assert apart(torch.is_grad_enabled) == [True] * 2


def test_replicas_share_the_callers_intraop_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert apply(torch.get_num_threads, count=2) == [2, 2]
        assert apply(torch.get_num_threads, count=3) == [1, 1, 1]
        assert apply(lambda: apply(torch.get_num_threads, count=2), count=2) == [[1, 1]] * 2
        assert torch.get_num_threads() == 4
        found: list[int] = []
        fresh = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert found == [4]
    finally:
        torch.set_num_threads(before)


def test_a_dispatch_mode_of_the_caller_sees_every_replica() -> None:
    net, x = nn.Linear(4, 3), torch.zeros(7, 4)
    counts = []
    for module in (net, DataParallel(net, virtual(3))):
        with FlopCounterMode(display=False) as counter:
            module(x).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_the_meta_device_computes_shapes() -> None:
    layer, x = nn.Linear(4, 3, device="meta"), torch.zeros(7, 4, device="meta")
    assert [out.shape for out in parallel_apply([layer, layer], [x, x])] == [(7, 3)] * 2
    assert DataParallel(layer, ["meta", "meta"])(x).shape == (7, 3)


@pytest.mark.parametrize("name", ["inputs", "kwargs_tup", "devices"])
def test_sequences_of_different_length_are_an_error(name: str) -> None:
    arguments: dict[str, Any] = {"inputs": [(), ()], "kwargs_tup": [{}, {}], "devices": virtual(2)}
    arguments[name] = arguments[name][:1]
    with pytest.raises(ValueError, match=f"2 modules but 1 {name}"):
        parallel_apply([Call(current_device)] * 2, **arguments)


# --- exceptions ----------------------------------------------------------------------------------


class NeedsTwoError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


def raise_in(replicas: set[int], error: Callable[[], BaseException]) -> Callable[[], Any]:
    def forward() -> Any:
        _, replica = current_device()
        if replica in replicas:
            raise error()
        return replica

    return forward


@pytest.mark.parametrize("count", [1, 3])
def test_an_exception_keeps_its_type_and_names_replica_and_device(count: int) -> None:
    last = count - 1
    with pytest.raises(KeyError) as caught:
        apply(raise_in({last}, lambda: KeyError("wonderful")), count)
    assert f"Caught KeyError in replica {last} on device cpu:{last}.\n'wonderful'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]
    assert frames[-1] == "forward"


def test_the_first_of_several_exceptions_is_raised_and_the_others_are_named() -> None:
    with pytest.raises(ValueError, match="in replica 1 on device cpu:1") as caught:
        apply(raise_in({1, 2, 3}, lambda: ValueError("bad")), 4)
    assert caught.value.__notes__ == ["replicas 2, 3 raised as well"]


@pytest.mark.parametrize(
    "error", [lambda: NeedsTwoError(3, "text"), lambda: SystemExit(7), KeyboardInterrupt]
)
def test_an_exception_without_a_message_argument_gets_a_note(error: Any) -> None:
    with pytest.raises(type(error())) as caught:
        apply(raise_in({2}, error))
    assert caught.value.args == error().args
    assert caught.value.__notes__ == ["Caught in replica 2 on device cpu:2."]


def test_the_other_replicas_finish_before_the_exception_is_raised() -> None:
    done: list[int | None] = []
    failed = threading.Event()

    def forward() -> None:
        _, replica = current_device()
        if replica == 0:
            failed.set()
            raise ValueError("first")
        assert failed.wait(1000)
        done.append(replica)

    with pytest.raises(ValueError, match="first"):
        apply(forward)
    assert sorted(map(str, done)) == ["1", "2"]


class OneTextError(Exception):
    """Takes a message, so that parallel_apply raises a second one in its place."""


@pytest.mark.parametrize("error", [lambda: OneTextError("bad"), lambda: NeedsTwoError(3, "text")])
def test_an_exception_and_what_its_frames_hold_end_with_the_except_clause(error: Any) -> None:
    held: list[weakref.ref[Any]] = []

    def attempt() -> None:
        forward = raise_in({1, 2}, lambda: held.append(weakref.ref(raised := error())) or raised)
        held.append(weakref.ref(forward))
        try:
            apply(forward)
        except (OneTextError, NeedsTwoError) as caught:
            held.append(weakref.ref(caught))

    gc.disable()  # what only the garbage collector frees is a cycle
    try:
        attempt()
        assert len(held) == 4
        assert [reference() for reference in held] == [None] * 4
    finally:
        gc.enable()


# --- workers -------------------------------------------------------------------------------------


def test_no_modules_give_no_outputs() -> None:
    assert parallel_apply([], []) == []


def test_a_single_module_runs_in_the_callers_thread() -> None:
    assert apply(threading.get_ident, count=1) == [threading.get_ident()]


def test_data_parallel_inside_a_replica_does_not_deadlock() -> None:
    inner = DataParallel(nn.Linear(4, 2).double(), virtual(2))
    outer = DataParallel(nn.Sequential(inner, nn.Tanh()), virtual(3))
    x = torch.randn(12, 4, dtype=torch.double)
    expected = torch.tanh(inner.module(x))
    torch.testing.assert_close(outer(x), expected, rtol=1e-12, atol=1e-12)
    outer(x).sum().backward()
    assert inner.module.weight.grad is not None


def test_concurrent_callers_get_their_results() -> None:
    wrapped = DataParallel(Call(lambda x: x * 2), virtual(3))
    results: dict[int, torch.Tensor] = {}

    def caller(number: int) -> None:
        for _ in range(20):
            results[number] = wrapped(torch.full((6, 2), float(number)))

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[n], torch.full((6, 2), 2.0 * n)) for n in range(6))


def test_an_idle_worker_keeps_no_module_or_batch_alive() -> None:
    net, x = nn.Linear(2, 2), torch.zeros(4, 2)
    alive = [weakref.ref(net), weakref.ref(x)]
    parallel_apply([net, net], [x, x], None, virtual(2))
    del net, x
    assert [ref() for ref in alive] == [None, None]


def child(queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put((os.getpid(), apply(current_device)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_its_own_workers() -> None:
    apply(current_device)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    pid, places = queue.get()
    assert pid != os.getpid()
    assert places == [(device, i) for i, device in enumerate(virtual(3))]
    assert apply(current_device) == places


def test_replicas_that_wait_for_each_other_end_in_a_dispatch_mode() -> None:
    """A mode sees the operators of one replica at a time, but where one waits for another."""
    barrier = threading.Barrier(3, timeout=1000)

    class Waiting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            return super().forward(x)

    module, batch = Waiting(5, 2), torch.randn(9, 5)
    with FlopCounterMode(display=False) as counter:
        outputs = parallel_apply([module] * 3, list(batch.chunk(3)), devices=virtual(3))
    assert torch.equal(torch.cat(outputs), nn.functional.linear(batch, module.weight, module.bias))
    assert counter.get_total_flops() == 9 * 2 * 5 * 2

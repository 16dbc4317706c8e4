"""parallel_apply: the state of a thread, replicas that wait for each other, exceptions, threads."""

import copy
import gc
import multiprocessing
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

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


def test_replicas_that_wait_for_each_other_do_not_hang() -> None:
    barrier = threading.Barrier(9, timeout=1000)
    for _ in range(2):
        assert sorted(apply(barrier.wait, count=9)) == list(range(9))


def test_nested_replicas_that_wait_for_each_other_do_not_hang() -> None:
    """All replicas of the outer module share the inner one, and the threads that it keeps."""
    barrier = threading.Barrier(12, timeout=1000)
    inner = DataParallel(Call(lambda x: barrier.wait() * 0 + x), virtual(4))
    outer, x = DataParallel(inner, virtual(3)), torch.arange(12.0)
    assert torch.equal(outer(x), x)


# --- the state of a thread -----------------------------------------------------------------------


def in_each(state: Callable[[], Any]) -> Any:
    """What the function returns, which is the same in the caller's thread and in another one."""
    barrier = threading.Barrier(2, timeout=1000)
    threads, (first, second) = zip(
        *apply(lambda: (barrier.wait(), threading.get_ident(), state())[1:], 2), strict=True
    )
    assert threads[0] == threading.get_ident() != threads[1]
    assert first == second
    return first


@pytest.mark.parametrize("grad", [True, False])
def test_replicas_have_the_callers_grad_mode(grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        assert in_each(torch.is_grad_enabled) == grad


def test_replicas_have_the_callers_inference_mode() -> None:
    with torch.inference_mode():
        assert in_each(torch.is_inference_mode_enabled)
        assert DataParallel(nn.Linear(2, 2), virtual(2))(torch.zeros(4, 2)).is_inference()
    assert not in_each(torch.is_inference_mode_enabled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_replicas_have_the_callers_autocast_with_its_dtype(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=dtype):
        assert in_each(lambda: (torch.ones(2, 2) @ torch.ones(2, 2)).dtype) == dtype
    assert not in_each(lambda: torch.is_autocast_enabled("cpu"))


def test_a_replicas_changes_to_its_thread_end_with_the_forward() -> None:
    in_each(lambda: torch.set_grad_enabled(False) and None)
    assert in_each(torch.is_grad_enabled)
    apply(lambda: torch.set_grad_enabled(False), count=1)
    assert torch.is_grad_enabled()


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


def test_a_dispatch_mode_of_the_caller_sees_replicas_that_wait_for_each_other() -> None:
    barrier = threading.Barrier(3, timeout=1000)

    class Waiting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            return super().forward(x)

    module, batch = Waiting(5, 2), torch.randn(9, 5)
    with FlopCounterMode(display=False) as counter:
        out = DataParallel(module, virtual(3))(batch)
        out.sum().backward()
    assert torch.equal(out, nn.functional.linear(batch, module.weight, module.bias))
    assert counter.get_total_flops() == 2 * 9 * 2 * 5 * 2


def test_fake_tensors_are_computed_in_the_thread_of_their_mode() -> None:
    with FakeTensorMode():
        outputs = DataParallel(nn.Linear(5, 2), virtual(3))(torch.randn(9, 5))
        assert apply(threading.get_ident) == [threading.get_ident()] * 3
    assert outputs.shape == (9, 2)


def test_hooks_of_the_caller_see_what_each_replica_saves_and_where() -> None:
    seen: list[Any] = []
    unpacked: list[Any] = []
    hooks = (lambda t: (seen.append(current_device()), t)[1], lambda t: (unpacked.append(t), t)[1])
    x = torch.randn(7, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        out = DataParallel(Call(torch.exp), virtual(3))(x)
    out.sum().backward()
    assert seen == [(device, i) for i, device in enumerate(virtual(3))]
    assert len(unpacked) == 3
    torch.testing.assert_close(x.grad, x.exp())


def test_checkpoint_around_replicas_gives_the_gradients_of_each() -> None:
    """It numbers what is saved, in the order in which its hooks get it."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh()).double()
    wrapped, x = DataParallel(net, virtual(4)), torch.randn(8, 6, dtype=torch.double)
    expected = torch.autograd.grad(wrapped(x).square().sum(), list(net.parameters()))
    for _ in range(20):
        out = checkpoint(wrapped, x, use_reentrant=False)
        found = torch.autograd.grad(out.square().sum(), list(net.parameters()))
        assert all(map(torch.equal, found, expected))


def test_the_meta_device_computes_shapes() -> None:
    layer, x = nn.Linear(4, 3, device="meta"), torch.zeros(7, 4, device="meta")
    assert [out.shape for out in parallel_apply([layer, layer], [x, x])] == [(7, 3)] * 2
    assert DataParallel(layer, ["meta", "meta"])(x).shape == (7, 3)


# --- exceptions ----------------------------------------------------------------------------------


def raise_in(replicas: set[int], error: Callable[[], BaseException]) -> Callable[[], Any]:
    def forward() -> Any:
        _, replica = current_device()
        if replica in replicas:
            raise error()
        return replica

    return forward


@pytest.mark.parametrize("error", [lambda: KeyError("wonderful"), lambda: SystemExit(7), KeyboardInterrupt])
@pytest.mark.parametrize("count", [1, 3])
def test_an_exception_is_raised_with_a_note_of_its_replica_and_device(error: Any, count: int) -> None:
    last = count - 1
    with pytest.raises(type(error())) as caught:
        apply(raise_in({last}, error), count)
    assert caught.value.args == error().args
    assert caught.value.__notes__ == [f"Caught in replica {last} on device cpu:{last}."]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "forward"


def test_the_first_of_several_exceptions_is_raised() -> None:
    with pytest.raises(ValueError, match="in replica 1 on device cpu:1"):
        apply(raise_in({1, 2, 3}, lambda: ValueError("bad")), 4)


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


class BadError(ValueError):
    """Unlike PyTorch's and Python's own, it takes weak references."""


def test_an_exception_and_what_its_frames_hold_end_with_the_except_clause() -> None:
    held: list[weakref.ref[Any]] = []

    def attempt() -> None:
        forward = raise_in({1, 2}, lambda: held.append(weakref.ref(raised := BadError())) or raised)
        held.append(weakref.ref(forward))
        try:
            apply(forward)
        except BadError as caught:
            held.append(weakref.ref(caught))

    gc.disable()  # what only the garbage collector frees is a cycle
    try:
        attempt()
        assert len(held) == 4
        assert [reference() for reference in held] == [None] * 4
    finally:
        gc.enable()


# --- threads -------------------------------------------------------------------------------------


def test_no_modules_give_no_outputs_and_a_single_one_runs_in_the_callers_thread() -> None:
    assert parallel_apply([], []) == []
    assert apply(threading.get_ident, count=1) == [threading.get_ident()]


def test_a_module_keeps_its_threads_and_they_end_with_it() -> None:
    barrier = threading.Barrier(3, timeout=1000)
    found: list[threading.Thread] = []
    module = Call(lambda x: (barrier.wait(), found.append(threading.current_thread()), x)[-1])
    wrapped = DataParallel(module, virtual(3))
    for _ in range(3):
        wrapped(torch.zeros(3))
    workers = set(found) - {threading.current_thread()}
    assert len(workers) == 2
    gc.disable()  # what only the garbage collector frees is a cycle
    try:
        del wrapped, module
        for thread in workers:
            thread.join(1000)
            assert not thread.is_alive()
    finally:
        gc.enable()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copied_or_pickled_module_starts_threads_of_its_own(copied: Callable[[Any], Any]) -> None:
    wrapped, x = DataParallel(nn.Linear(2, 2), virtual(3)), torch.randn(6, 2)
    expected = wrapped(x)
    assert torch.equal(copied(wrapped)(x), expected)


def test_an_idle_thread_keeps_no_replica_or_batch_alive() -> None:
    wrapped, seen = DataParallel(Call(lambda x: x + 0), virtual(2)), list[weakref.ref[Any]]()
    wrapped.module.register_forward_hook(
        lambda module, args, _: seen.extend(map(weakref.ref, (module, *args)))
    )
    wrapped(torch.zeros(4, 2))
    assert [reference() for reference in seen] == [None] * 4


def compute_in_child(wrapped: nn.Module, queue: Any) -> None:
    torch.set_num_threads(1)
    queue.put(wrapped(torch.arange(6.0)).tolist())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_starts_its_own_threads() -> None:
    wrapped = DataParallel(nn.Identity(), virtual(3))
    expected = wrapped(torch.arange(6.0)).tolist()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=compute_in_child, args=(wrapped, queue), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == expected

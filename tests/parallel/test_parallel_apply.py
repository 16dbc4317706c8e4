"""parallel_apply: the state of a thread, replicas that wait for each other, exceptions, threads."""

import gc
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._utils import ExceptionWrapper
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dpexp.devices import current_device, virtual
from dpexp.parallel import DataParallel, parallel_apply, replicate
from dpexp.parallel.replicate import explained_stops


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


@pytest.mark.parametrize("devices", [virtual(2), None])
def test_an_input_is_a_tuple_of_arguments_or_the_only_argument(devices: Any) -> None:
    layers = [nn.Linear(10, 5), nn.Linear(10, 5)]
    x, y = torch.randn(2, 10), torch.randn(3, 10)
    expected = [layers[0](x), layers[1](y)]
    for inputs in ([(x,), (y,)], [x, y], [[x], [y]]):
        for found, wanted in zip(parallel_apply(layers, inputs, None, devices), expected, strict=True):
            assert torch.equal(found, wanted)


def test_every_replica_knows_its_device_and_number() -> None:
    assert apply(current_device) == [(device, i) for i, device in enumerate(virtual(3))]
    assert apply(current_device, count=1) == [(torch.device("cpu", 0), 0)]
    assert current_device() == (None, None)


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


def test_replicas_have_the_callers_modes() -> None:
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert in_each(torch.is_grad_enabled) == grad
    with torch.inference_mode():
        assert in_each(torch.is_inference_mode_enabled)
    with torch.autocast("cpu", dtype=torch.float16):
        assert in_each(lambda: (torch.ones(2, 2) @ torch.ones(2, 2)).dtype) == torch.float16
    assert not in_each(lambda: torch.is_autocast_enabled("cpu"))


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


def test_checkpoint_around_replicas_gives_the_gradients_of_each() -> None:
    """It numbers what is saved, in the order in which its hooks get it."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh()).double()
    wrapped, x = DataParallel(net, virtual(4)), torch.randn(8, 6, dtype=torch.double)
    expected = torch.autograd.grad(wrapped(x).square().sum(), list(net.parameters()))
    for _ in range(20):
        out = checkpoint(wrapped, x, use_reentrant=False)
        found = torch.autograd.grad(out.square().sum(), list(net.parameters()))
        assert all(map(torch.equal, found, expected))


# --- exceptions ----------------------------------------------------------------------------------


def raise_in(replicas: set[int], error: Callable[[], BaseException]) -> Callable[[], Any]:
    def forward() -> Any:
        _, replica = current_device()
        if replica in replicas:
            raise error()
        return replica

    return forward


@pytest.mark.parametrize("error", [lambda: KeyError("wonderful"), KeyboardInterrupt])
@pytest.mark.parametrize("count", [1, 3])
def test_an_exception_is_raised_with_a_note_of_its_replica_and_device(error: Any, count: int) -> None:
    last = count - 1
    with pytest.raises(type(error())) as caught:
        apply(raise_in({last}, error), count)
    assert caught.value.args == error().args
    assert caught.value.__notes__ == [f"Caught in replica {last} on device cpu:{last}."]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "forward"


class AsksForItsDevice(nn.Linear):
    """Its forward works on one device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(next(self.parameters()).device))


def test_a_replica_that_asks_for_its_parameters_is_told_that_it_has_none() -> None:
    replicas = replicate(AsksForItsDevice(3, 2), virtual(2))
    with pytest.raises(StopIteration, match=r"as self\.fc\.weight\.device") as caught:
        parallel_apply(replicas, [(torch.ones(4, 3),)] * 2, devices=virtual(2))
    assert caught.value.__notes__ == ["Caught in replica 0 on device cpu:0."]


class DifferentiatesItself(nn.Linear):
    """Its forward takes the gradient of its own parameters, as a step of MAML does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.autograd.grad(super().forward(x).sum(), list(self.parameters()))
        return x


def test_a_replica_that_differentiates_by_what_it_lacks_is_told_what_to_do() -> None:
    replicas = replicate(DifferentiatesItself(3, 2), virtual(2))
    with pytest.raises((RuntimeError, ValueError), match="ddp has them"):
        parallel_apply(replicas, [(torch.ones(4, 3),)] * 2, devices=virtual(2))


def test_so_it_is_where_pytorch_raises_the_error_of_a_replica_again() -> None:
    def raised_again() -> None:
        try:
            replicate(AsksForItsDevice(3, 2), virtual(2))[0](torch.ones(4, 3))
        except StopIteration:
            ExceptionWrapper(where="in replica 0 on device 0").reraise()

    with pytest.raises(StopIteration, match=r"as self\.fc\.weight\.device"), explained_stops():
        raised_again()


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


# --- threads -------------------------------------------------------------------------------------


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

"""A watched loop computes the same bits as an unwatched one, and nothing is left of the watch."""

import gc
import random
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from helpers.in_ranks import in_ranks
from loops import MLP, loop, mse, numbers, rank, sgd, train, watch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as hooks

import dpexp
from dpexp import tensors
from dpexp.config.errors import VerificationError
from dpexp.distributed.group import ProcessGroup
from dpexp.watch.blocks import Absent
from dpexp.watch.calls import Call

LAYOUTS = {
    "none": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp": fully_shard,
    "wrapped": lambda model: nn.DataParallel(model, device_ids=[0]),
}


class Draws(nn.Module):
    """Dropout, BatchNorm, and draws from Python's and NumPy's random number generators."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(self.norm(self.fc1(x * random.random() + numpy.random.rand()))))


class Keeps(nn.Module):
    """A loss that keeps the mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return mse(outputs, targets)


def final_state(layout: str, is_watched: bool, has_autocast: bool, device: str) -> list[str]:
    """Digests of all that a loop leaves: parameters and buffers, optimizer state, loss, random states."""
    random.seed(rank())
    numpy.random.seed(rank())
    torch.manual_seed(0)
    model, keeps = Draws().to(device), Keeps().to(device)
    run: Any = watch(model, keeps) if is_watched else SimpleNamespace(loss=keeps)
    laid_out, optimizer = LAYOUTS[layout](model), sgd(model.parameters())
    torch.manual_seed(7 + rank())
    scaler = torch.amp.GradScaler(device, enabled=has_autocast)
    cast = torch.autocast(device, torch.bfloat16) if has_autocast else nullcontext()
    for step in range(6):
        optimizer.zero_grad()
        for number in range(2):
            inputs, targets = (each.to(device) for each in numbers(step, number))
            with cast:
                loss = run.loss(laid_out(inputs + random.random() + numpy.random.rand()).float(), targets)
            scaler.scale(loss / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    if is_watched:
        assert run.verdict().steps == 4
    of_optimizer = [each for state in optimizer.state.values() for each in state.values()]
    states = [local(each) for each in (*model.state_dict().values(), keeps.mean, *of_optimizer)]
    return [
        *(tensors.digest([each]) for each in states),
        tensors.digest(
            [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if device == "cuda" else [])]
        ),
        str(random.getstate()),
        str(numpy.random.get_state()),
    ]


def local(each: Any) -> torch.Tensor:
    return each.to_local() if hasattr(each, "to_local") else each


def is_unchanged(_: ProcessGroup | None, case: str, device: str = "cpu") -> bool:
    layout, has_autocast = case.removesuffix("+autocast"), case.endswith("autocast")
    plain, watched = (final_state(layout, is_watched, has_autocast, device) for is_watched in (False, True))
    assert len(plain) > 10
    return plain == watched


@pytest.mark.usefixtures("one_thread")
def test_a_watched_loop_of_one_process_ends_with_the_same_bits() -> None:
    assert is_unchanged(None, "none")


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["none", "none+autocast", "wrapped"])
def test_a_watched_loop_on_an_accelerator_ends_with_the_same_bits(case: str) -> None:
    assert is_unchanged(None, case, "cuda")


@pytest.mark.gpu
def test_a_wrong_loop_on_an_accelerator_is_wrong() -> None:
    def batch(step: int, number: int) -> Any:
        return [each.cuda() for each in numbers(step, number)]

    with pytest.raises(VerificationError, match="not divided by 2"):
        loop(MLP().cuda(), micro=2, batch=batch, share=lambda number: 1.0).verdict()


@pytest.mark.parametrize("case", ["ddp+autocast", "fsdp"])
def test_a_watched_loop_of_two_ranks_ends_with_the_same_bits(case: str) -> None:
    assert in_ranks(2, __file__, f"is_unchanged:{case}")[f"is_unchanged:{case}"] == [True, True]


@pytest.fixture
def left_of() -> Callable[[nn.Module], list[str]]:
    """What a watch of this test has left: hooks, its step of GradScaler, numbers of a copy of the model."""
    of_optimizers = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks
    known = [set(some) for some in of_optimizers]  # of other tests

    def left(model: nn.Module) -> list[str]:
        of_modules = [
            each for part in model.modules() for key, each in vars(part).items() if key.endswith("_hooks")
        ]
        new = [set(some) - before for some, before in zip(of_optimizers, known, strict=True)]
        gc.collect()
        copies = [each for each in gc.get_objects() if type(each) is type(model) and each is not model]
        of_copies = [
            pair
            for copy in copies
            for some in (copy.named_parameters(), copy.named_buffers())
            for pair in some
        ]
        held = [name for name, each in of_copies if _has_numbers(each)]
        is_torchs = torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler"
        return [*(str(each) for each in (*of_modules, *new) if each), *held, *["scaler"][is_torchs:]]

    return left


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has memory for more than one."""
    return not isinstance(tensor, Absent) and tensor.untyped_storage().nbytes() > tensor.element_size()


class Other(Draws):
    pass


def test_nothing_is_left_where_the_loop_raises(left_of: Any) -> None:
    model = Draws()
    with pytest.raises(KeyboardInterrupt), watch(model, mse):
        raise KeyboardInterrupt
    assert left_of(model) == []


@pytest.mark.usefixtures("one_thread")
def test_of_two_watches_the_last_leaves_nothing(left_of: Any) -> None:
    first, second = watch(model := Draws(), mse, steps=1), watch(other := Other(), mse, steps=3)
    train(first, model, sgd(model.parameters()))
    train(second, other, sgd(other.parameters()), steps=2)
    assert left_of(other), "the second is still watched"
    train(second, other, sgd(other.parameters()), steps=2)
    assert left_of(model) == left_of(other) == []
    assert [run.verdict().steps for run in (first, second)] == [1, 3]


def test_no_call_is_kept_after_the_end() -> None:
    class Inside(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    def calls() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, Call)}

    optimizer, of_other_tests = sgd((model := Inside()).parameters()), calls()
    run = dpexp.watch(model, track=False)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).backward()
        optimizer.step()
    run.verdict()
    assert calls() <= of_other_tests


def test_a_step_that_ends_the_watch_leaves_no_hook_of_its_optimizer() -> None:
    optimizer = sgd((model := MLP()).parameters())
    optimizer.register_step_pre_hook(lambda *_: None)
    run = dpexp.watch(model, mse, steps=1, track=False)
    (2 * mse(model(torch.randn(4, 8)), torch.randn(4, 4))).backward()  # not run.loss: not comparable
    optimizer.step()
    assert run.done
    assert len(optimizer._optimizer_step_pre_hooks) == 1

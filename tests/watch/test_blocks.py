"""A replica whose blocks are there one at a time is right, or not comparable, wherever a full one is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from loops import MLP, Claims, check_on_two_ranks, mse, numbers, rank, sgd, steps_of, train, watch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from dpexp.watch.blocks import block_names, parameters_of

on_one, claims = Claims(), Claims()


@pytest.mark.parametrize("name", on_one)
def test_the_verdict_of(name: str) -> None:
    on_one[name].check(on_one[name].ends())


@pytest.mark.parametrize("name", claims)
def test_the_verdict_on_two_ranks_of(name: str) -> None:
    check_on_two_ranks(__name__, f"{name}")


class Block(nn.Module):
    """(rows, 8) to the same, with random numbers, and a buffer that a forward changes and reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out, self.drop = spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
        return x + self.drop(self.out(torch.tanh(self.fc(x)))) * scale


class Stack(nn.Module):
    """Blocks whose numbers are in ``order``."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2), is_checkpointed: bool = False) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(8, 4)
        self.order, self.is_checkpointed = order, is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            block = partial(self.layers[number], scale=0.5)
            x = checkpoint(block, x, use_reentrant=True) if self.is_checkpointed else block(x)
        return self.head(x)


class ReadsBlocks(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (self.layers[0].out.weight[0, :4] > 0)


def in_blocks(
    model: nn.Module, layout: Callable[[nn.Module], Any] = lambda model: model, **training: Any
) -> Any:
    run = watch(model, mse, replica="blocks")
    layout(model)
    train(run, model, sgd(model.parameters()), micro=2, **training)
    assert run.findings or run.note or run._replay.blocks
    return run


def sharded(model: Any, is_apart: bool = False) -> None:
    for each in model.layers:
        if is_apart:
            fully_shard([each.fc, each.drop])
            fully_shard(each.out)
        else:
            fully_shard(each)
    fully_shard(model)


on_one.right(
    blocks=lambda: in_blocks(Stack()),
    blocks_that_are_called_twice=lambda: in_blocks(Stack((0, 1, 1, 0))),
    blocks_under_autocast=lambda: in_blocks(
        Stack(), during=lambda model, number: torch.autocast("cpu", torch.bfloat16)
    ),
)
on_one.not_comparable(
    "parameters of a block outside of it: state replica='full'",
    weights_that_are_read_outside_of_their_block=lambda: in_blocks(ReadsBlocks()),
)
on_one.wrong("not divided by 2", blocks_of_a_wrong_loop=lambda: in_blocks(Stack(), share=lambda number: 1.0))


@on_one.right()
def blocks_that_have_the_bits_of_a_full_replica() -> Any:
    torch.manual_seed(0)
    model = Stack()
    full = watch(model, mse, replica="full")
    blocks = watch(model, full.loss, replica="blocks")
    train(blocks, model, sgd(model.parameters()), micro=2)
    assert full._errors == blocks._errors
    assert all(not each.error for each in blocks._errors.values())
    return full, blocks


claims.right(
    sharded_blocks=lambda: in_blocks(Stack(is_checkpointed=True), sharded),
    parts_of_blocks_are_sharded=lambda: in_blocks(Stack(), partial(sharded, is_apart=True)),
    a_model_is_sharded_as_a_whole=lambda: in_blocks(Stack((0, 1, 2, 0)), fully_shard),
)
claims.not_comparable(
    "ranks compute other parts of the model: state replica='full'",
    ranks_call_blocks_in_another_order=lambda: in_blocks(
        Stack((0, 1, 2) if rank() else (2, 1, 0)), fully_shard
    ),
)


def tensor_parallel(model: nn.Module) -> None:
    plan = {"layers.*.out": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


claims.right(
    blocks_of_tensor_parallel_layers=lambda: in_blocks(
        Stack(), tensor_parallel, batch=partial(numbers, of_rank=0)
    )
)


@claims.right()
def a_rank_without_a_call_in_a_step() -> Any:
    run = watch(model := MLP(), mse, weight=False)
    for step in steps_of(sgd(model.parameters())):
        inputs, labels = numbers(step, 0)
        if step == 0 or rank() == 0:
            run.loss(model(inputs), labels).backward()
        for each in model.parameters():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            distributed.all_reduce(each.grad)
    return run


def test_blocks_are_the_largest_list_of_modules_and_have_what_only_they_use() -> None:
    model = Stack()
    model.layers[2].out.weight = model.layers[1].out.weight
    blocks = block_names(model)
    assert blocks == ["layers.0", "layers.1", "layers.2"]
    assert [*parameters_of(model, blocks)["layers.2"]] == [
        "layers.2.fc.bias",
        "layers.2.fc.parametrizations.weight.original",
        "layers.2.out.bias",
    ]

"""What a rank owns of a parameter, by any layout: the box of its shard."""

from collections.abc import Iterator
from typing import Any

import torch
from helpers.in_ranks import in_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dpexp.distributed.group import ProcessGroup
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards, own, sampled


def test_each_number_of_a_parameter_is_owned_once() -> None:
    (by_rank,) = in_ranks(4, __file__, "shards").values()
    for found in by_rank:
        assert len(found) == 17
        assert not {name: each for name, each in found.items() if not all(each)}


def placed() -> Iterator[tuple[str, torch.Tensor, nn.Parameter]]:
    """Full tensors, and parameters that have them."""
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name, mesh, shape, placements in (
        ("rows", line, (8, 6), [Shard(0)]),
        ("rows of some ranks", line, (5, 6), [Shard(0)]),
        ("one row", line, (1, 6), [Shard(0)]),
        ("columns", line, (6, 7), [Shard(1)]),
        ("a vector", line, (7,), [Shard(0)]),
        ("a scalar", line, (), [Replicate()]),
        ("no numbers", line, (0, 4), [Shard(0)]),
        ("more than a sample", line, (3000, 5), [Shard(0)]),
        ("columns of more than a sample", line, (5, 3000), [Shard(1)]),
        ("hybrid", square, (7, 3), [Replicate(), Shard(0)]),
        ("a square", square, (7, 5), [Shard(0), Shard(1)]),
        ("rows twice", square, (7, 6), [Shard(0), Shard(0)]),
    ):
        full = torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)
        yield name, full, nn.Parameter(distribute_tensor(full, mesh, placements))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
    full_ones = {name: each.detach().clone() for name, each in model.named_parameters()}
    parallelize_module(model, square["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=square["dp"])
    for name, each in model.named_parameters():
        yield f"{name}, tensor parallel and sharded", full_ones[name], each


def shards(_: ProcessGroup) -> dict[str, list[bool]]:
    ranks, found = LoopRanks(), dict[str, list[bool]]()
    for name, full, parameter in placed():
        shards, local = Shards.of({"p": parameter}, ranks), own(parameter)
        rows = shards.rows("p")
        samples = ranks.all_gather(sampled(local, parameter))
        found[name] = [
            torch.equal(shards.cut("p", full), local),
            tuple(local.shape) == shards.shape("p"),
            torch.equal(shards.cut("p", full[rows.start : rows.stop] if full.dim() else full, 1), local),
            torch.equal(sum(samples[rank] for rank in shards.owners("p")), sampled(full)),
            shards.summed({"p": float(local.double().sum())})["p"] == float(full.double().sum()),
            torch.equal(shards.gathered("p", local.clone(), parameter), full),
        ]
    return found | {"gradients that are placed otherwise": gradients(ranks)}


def gradients(ranks: LoopRanks) -> list[bool]:
    line = init_device_mesh("cpu", (4,))
    full = torch.arange(24.0).reshape(6, 4)
    parameter: Any = nn.Parameter(distribute_tensor(full, line, [Shard(0)]))
    wanted = Shards.of({"p": parameter}, ranks).cut("p", full)
    others = [distribute_tensor(full, line, [each]) for each in (Replicate(), Shard(1))]
    others.append(DTensor.from_local(full / 4, line, [Partial()]))
    return [torch.equal(own(each, parameter), wanted) for each in others]

"""torchtitan's Qwen3 with experts under tensor parallelism: a router's gradient is its rank's part."""

import copy
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

sys.path.append(str(Path(__file__).parents[1] / "layouts"))
import torchtitan_models as models
from torchtitan_on_cpu import parallelized

RANKS = 4
CASES = ({}, {"ep": 2}, {"ep": 2, "etp": 2})
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ALIKE = (Replicate(), Shard(0), Shard(1))  # rows and heads are independent; PyTorch has no rule for a CPU
register_sharding(ATTENTION.default)(lambda *_, **__: [([p, p], [p, p, p, *[None] * 4]) for p in ALIKE])
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
register_sharding(backward)(lambda *_, **__: [([p, p, p], [p] * 6 + [None] * 4) for p in ALIKE])
NAME = "layers.1.moe.router.gate.weight"
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for degrees in CASES:
    torch.manual_seed(0)
    model, (inputs, targets) = models.qwen3_moe().double(), models.tokens(8)
    single = copy.deepcopy(model)
    models.loss(single(inputs), targets).backward()
    laid_out = parallelized(model, mesh, dp_shard=2, tp=2, **degrees)
    inputs, targets = (each.chunk(2)[mesh.get_local_rank("dp")] for each in (inputs, targets))
    models.loss(laid_out(inputs), targets).backward()
    wanted, found = single.get_parameter(NAME).grad, laid_out.get_parameter(NAME).grad.full_tensor()
    distributed.all_reduce(added := found.clone(), group=mesh.get_group("tp"))
    off, of_sum = (((each - wanted).norm() / wanted.norm()).item() for each in (found, added))
    print(f"{degrees}: {off:.0%} off, the sum {of_sum:.0e}; " if distributed.get_rank() == 0 else "", end="")
    assert off > 0.1 > 1e-3 > of_sum

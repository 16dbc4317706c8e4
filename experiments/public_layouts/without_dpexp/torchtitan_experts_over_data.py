"""torchtitan's experts over data ranks: gradients reduced in float64 are divided by the number of ranks twice, in float32 once."""

import copy
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

sys.path.append(str(Path(__file__).parents[1] / "layouts" / "torchtitan"))
import models
from parallelized import parallelized

RANKS = 2
NAME = "layers.2.moe.experts.w1"


def ratio(dtype):
    """The gradient of the experts here over that of a single device."""
    torch.manual_seed(0)
    model, (inputs, targets) = models.deepseek_v3().to(dtype), models.tokens(6)
    single = copy.deepcopy(model)
    models.loss(single(inputs), targets).backward()
    laid_out = parallelized(model, init_device_mesh("cpu", (RANKS,)), dp_shard=RANKS, ep=RANKS)
    inputs, targets = (each.chunk(RANKS)[distributed.get_rank()] for each in (inputs, targets))
    models.loss(laid_out(inputs), targets).backward()
    wanted, found = (each.get_parameter(NAME).grad for each in (single, laid_out))
    return (found.full_tensor().norm() / wanted.norm()).item()


distributed.init_process_group("gloo")
in_float32, in_float64 = ratio(torch.float32), ratio(torch.float64)
print(
    f"{in_float32:.4f} times the gradient in float32, {in_float64:.4f} times in float64; "
    * (distributed.get_rank() == 0),
    end="",
)
assert abs(in_float32 - 1) < 1e-3 < abs(in_float64 - 1)
distributed.destroy_process_group()

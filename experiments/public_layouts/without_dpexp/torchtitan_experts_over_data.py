"""torchtitan's experts over data ranks: gradients reduced in float64 are divided twice, in float32 once."""

import copy
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

sys.path.append(str(Path(__file__).parents[1] / "layouts"))
import torchtitan_models as models
from torchtitan_on_cpu import parallelized

RANKS = 4
CASES = {"deepseek_v3": {"dp_shard": 4, "ep": 4}, "llama4": {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}}


def ratio(kind, dtype):
    """The gradient of the experts here over that of a single device."""
    torch.manual_seed(0)
    model, (inputs, targets) = getattr(models, kind)().to(dtype), models.tokens(8)
    single, ranks = copy.deepcopy(model), CASES[kind]["dp_shard"]
    models.loss(single(inputs), targets).backward()
    laid_out = parallelized(model, init_device_mesh("cpu", (RANKS,)), **CASES[kind])
    inputs, targets = (
        each.chunk(ranks)[distributed.get_rank() * ranks // RANKS] for each in (inputs, targets)
    )
    models.loss(laid_out(inputs), targets).backward()
    wanted, found = (each.get_parameter("layers.1.moe.experts.w1").grad for each in (single, laid_out))
    return (found.full_tensor().norm() / wanted.norm()).item()


distributed.init_process_group("gloo")
for kind in CASES:
    in_float32, in_float64 = ratio(kind, torch.float32), ratio(kind, torch.float64)
    shown = f"{kind}: {in_float32:.3f} times the gradient in float32, {in_float64:.3f} times in float64; "
    print(shown * (distributed.get_rank() == 0), end="")
    assert abs(in_float32 - 1) < 1e-3 < abs(in_float64 - 1)
distributed.destroy_process_group()

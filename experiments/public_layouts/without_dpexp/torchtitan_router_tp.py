"""torchtitan under tensor parallelism: a router's gradient is the part that its rank has computed, and nobody adds them up."""

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


def errors(kind, name):
    """How far the gradient is off, and how far the sum over the ranks is."""
    torch.manual_seed(0)
    model, (inputs, targets) = getattr(models, kind)().double(), models.tokens(6)
    single = copy.deepcopy(model)
    models.loss(single(inputs), targets).backward()
    laid_out = parallelized(model, init_device_mesh("cpu", (RANKS,)), tp=RANKS)
    models.loss(laid_out(inputs), targets).backward()
    wanted, found = (each.get_parameter(name).grad for each in (single, laid_out))
    added = found.full_tensor().clone()
    distributed.all_reduce(added)
    return [((each - wanted).norm() / wanted.norm()).item() for each in (found.full_tensor(), added)]


distributed.init_process_group("gloo")
for kind in ("deepseek_v3",):
    gradient, added = errors(kind, "layers.1.moe.router.gate.weight")
    if distributed.get_rank() == 0:
        print(f"{kind}: the gradient of layers.1.moe.router.gate.weight is {gradient:.0%} off, the sum over the ranks {added:.1e}")
    assert gradient > 0.1 > 1e-3 > added
distributed.destroy_process_group()

"""torchtitan under tensor parallelism: a router's gradient is its rank's part; nobody adds the parts up."""

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
CASES = {"tp": {}, "experts on tp": {"ep": 2}, "experts on data and tp": {"ep": 2, "etp": 2}}
RIGHT = ("tp, llama4", "experts on data and tp, llama4")  # scores come before experts that tp splits


def errors(kind, degrees):
    torch.manual_seed(0)
    model, (inputs, targets) = getattr(models, kind)().double(), models.tokens(8)
    single, name = copy.deepcopy(model), f"layers.{len(model.layers) - 1}.moe.router.gate.weight"
    models.loss(single(inputs), targets).backward()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    laid_out = parallelized(model, mesh, dp_shard=2, tp=2, **degrees)
    inputs, targets = (each.chunk(2)[mesh.get_local_rank("dp")] for each in (inputs, targets))
    models.loss(laid_out(inputs), targets).backward()
    wanted, found = single.get_parameter(name).grad, laid_out.get_parameter(name).grad.full_tensor()
    distributed.all_reduce(added := found.clone(), group=mesh.get_group("tp"))
    return [((each - wanted).norm() / wanted.norm()).item() for each in (found, added)]


distributed.init_process_group("gloo")
for name, kind in ((name, kind) for name in CASES for kind in ("deepseek_v3", "llama4")):
    off, added = errors(kind, CASES[name])
    print(
        f"{name}, {kind}: {off:.0%} off, the sum {added:.0e}; " if distributed.get_rank() == 0 else "", end=""
    )
    assert off < 1e-5 if f"{name}, {kind}" in RIGHT else off > 0.1 > 1e-3 > added

"""Post-local SGD in its local steps: no gradients are exchanged."""

from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    alone, _ = distributed.new_subgroups(group_size=1)
    state = PostLocalSGDState(None, alone, start_localSGD_iter=0)
    model.register_comm_hook(state, post_localSGD_hook)
    return model

"""Post-local SGD before its local steps begin: the mean of the gradients."""

from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    model.register_comm_hook(PostLocalSGDState(None, None, start_localSGD_iter=1000), post_localSGD_hook)
    return model

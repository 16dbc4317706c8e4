"""PyTorch's hook for debugging, which reduces nothing."""

from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks
from torch.nn.parallel import DistributedDataParallel

MESH = "dp=2"
MODELS = ("net",)


def parallelize(model, mesh):
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, debugging_hooks.noop_hook)
    return model

"""DDP for ZeroRedundancyOptimizer, which an optimizer's factory chooses by the mark on the parameters."""

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def replicated(model):
    for parameter in model.parameters():
        parameter.is_laid_out = True
    return DistributedDataParallel(model)


def zero(parameters, optimizer, lr, **options):
    """Of a single device, to compare with, it is the optimizer itself."""
    parameters = list(parameters)
    if not any(hasattr(parameter, "is_laid_out") for parameter in parameters):
        return optimizer(parameters, lr=lr)
    return ZeroRedundancyOptimizer(parameters, optimizer, lr=lr, **options)

"""loss_parallel: the logits stay split by the vocabulary, and the loss and its backward too."""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

MESH = "tp=2"
MODELS = ("text_with_loss",)
OPTIONS = {"data": "models.py:texts"}


def parallelize(model, mesh):
    loss_parallel().__enter__()  # as around forward and backward of a training loop
    head = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)
    return parallelize_module(model, mesh, {"head": head})

"""full_tensor() gathers the tokens for experts that differ by rank: its backward slices and adds nothing up."""

import gathered
from torch.distributed.tensor import DTensor, Shard

LINK = "https://github.com/NVIDIA-NeMo/Automodel/pull/1260"
RELEASE = "PyTorch 2.13.0: the call that the pull request mended"
PACKAGE = "pytorch"
MESH = "dp=2"
MODULE = "inputs"

model = gathered.model


def wrong(model, mesh):
    def tokens(x):
        return DTensor.from_local(x, mesh, [Shard(0)]).full_tensor()

    return gathered.laid_out(model, tokens, gathered.all_gather)


def mended(model, mesh):
    return gathered.laid_out(model, gathered.all_gather, gathered.all_gather)

"""The flag that a backward must reduce gradients is set after the forward, which DDP has prepared without it."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel

LINK = "https://github.com/karpathy/build-nanogpt/pull/30"
RELEASE = "PyTorch 2.13.0: the loop of build-nanogpt"
PACKAGE = "pytorch"
MESH = "dp=2"
MODULE = "2"


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))


class SetLate(DistributedDataParallel):
    """As the loop has it: the flag of the micro-step before is still there in the forward."""

    def forward(self, *inputs):
        self.require_backward_grad_sync = False
        outputs = super().forward(*inputs)
        self.require_backward_grad_sync = True
        return outputs


def wrong(model, mesh):
    return SetLate(model)


def mended(model, mesh):
    return DistributedDataParallel(model)

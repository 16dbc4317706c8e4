"""Hidden beside large numbers: an error that a norm over all tensors together cannot see."""

import torch
from catalogue import right, wrong
from nets import Net
from torch import nn
from torch.nn import functional


@right("host")
class Magnitudes(Net):
    """Has numbers of 1e-13 to 1e30 beside each other; the loss is of the logits, of which one is masked."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.full((4,), 1e15), requires_grad=False)
        self.register_buffer("seen", torch.tensor(2**53 + 2))
        self.register_buffer("mask", torch.full((4,), -1e30))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.seen += 2
        logits = super().forward(x) * (self.scale / 1e15) + 1e-13 * self.branch(x)
        self.mean.lerp_(logits.detach().mean(0), 0.1)
        features = self.first(x).detach()
        return {
            "logits": logits.masked_fill(torch.arange(4) == 3, -1e30),
            "large": 1e8 * features,
            "small": self.second(features).detach(),
            "ids": torch.arange(len(x)) * 0 + 2**53 + 2,
        }

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs["logits"], targets)

    def example(self, samples, generator):
        x, _ = super().example(samples, generator)
        return x, torch.randint(3, (samples,), generator=generator)


def other_output(model, name, change):
    model.register_forward_hook(lambda module, args, outputs: outputs | {name: change(outputs[name])})


@wrong("replicas", model="hidden:Magnitudes", kind="outputs")
def logits_beside_a_mask(model):
    """Logits beside a mask of -1e30 are too large by 0.001, which neither loss nor gradient shows."""
    other_output(model, "logits", lambda x: x + 1e-3)


@wrong("ranks", model="hidden:Magnitudes", module="branch", kind="gradients")
def sign_on_a_branch(model):
    """On a branch scaled by 1e-13 the gradient of the weight has the wrong sign."""
    model.branch.weight.register_hook(lambda gradient: -gradient)

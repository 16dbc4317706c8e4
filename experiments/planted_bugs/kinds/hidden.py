"""Hidden beside large numbers: an error that a norm over all tensors together cannot see."""

import torch
from catalogue import bug
from nets import Net
from torch import nn
from torch.nn import functional

EVERY = ("host", "replicas", "ranks")


class Hides(Net):
    """Gives its outputs as a dict; the loss is of the logits alone."""

    def forward(self, x):
        return {"logits": super().forward(x)} | self.beside(x)

    def beside(self, x):
        return {}

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs["logits"], targets)


class Masked(Net):
    """Logits of four classes, of which the last is masked with the smallest number of the type."""

    value = "smallest"

    def forward(self, x):
        logits = super().forward(x)
        mask = torch.zeros_like(logits, dtype=torch.bool)
        mask[:, -1] = True
        least = torch.finfo(logits.dtype).min if self.value == "smallest" else self.value
        return logits.masked_fill(mask, least)

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets)

    def example(self, samples, generator):
        x = torch.randn(samples, 6, generator=generator)
        return x, torch.randint(3, (samples,), generator=generator)


class MaskedBy1e9(Masked):
    value = -1e9


class MaskedBy1e30(Masked):
    value = -1e30


class MaskedByInfinity(Masked):
    value = float("-inf")


def shift_logits(model):
    """The logits are all larger by 0.001, which neither loss nor gradient shows."""
    model.third.register_forward_hook(lambda module, args, x: x + 1e-3)


for each in (Masked, MaskedBy1e9, MaskedBy1e30, MaskedByInfinity):
    value = "finfo.min" if each is Masked else f"{each.value:g}"

    def planted(model):
        shift_logits(model)

    planted.__doc__ = (
        f"Logits beside a mask of {value} are too large by 0.001, which neither loss nor gradient shows."
    )
    planted.__name__ = f"beside_{each.__name__.lower()}"
    globals()[planted.__name__] = bug(*EVERY, model="hidden." + each.__name__)(planted)


class Scaled(Hides):
    """Has a second head whose outputs are 1e7 times as large, and are not in the loss."""

    def beside(self, x):
        return {"scaled": 1e7 * self.first(x).detach(), "small": self.second(self.first(x)).detach()}


@bug(*EVERY, model="hidden.Scaled")
def beside_scaled_head(model):
    """A third output is off by 1e-6, beside a head scaled by 1e7."""
    model.register_forward_hook(
        lambda module, args, outputs: outputs | {"small": outputs["small"] * (1 + 1e-6)}
    )


class TwoLosses(Net):
    """The loss has a head scaled by 1e7."""

    def __init__(self):
        super().__init__()
        self.large = nn.Linear(6, 4)

    def forward(self, x):
        return torch.cat([super().forward(x), 1e7 * self.large(x)], 1)

    def loss(self, outputs, targets):
        return functional.mse_loss(outputs[:, :4], targets) + functional.mse_loss(outputs[:, 4:], targets)


@bug(*EVERY, model="hidden.TwoLosses", lr=1e-16)
def gradient_beside_scaled_head(model):
    """The gradient of `second.bias` is twice as large, beside that of a head scaled by 1e7."""
    model.second.bias.register_hook(lambda gradient: 2 * gradient)


@bug("host", "ranks", model="hidden.TwoLosses", lr=1e-16)
def update_beside_scaled_head(model):
    """Of `first.bias` the update is lost, beside that of a head scaled by 1e7."""
    model.first.bias.register_hook(lambda gradient: 0 * gradient)


class Branch(Net):
    """Has a branch scaled by 1e-9."""

    scale = 1e-9

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(6, 4)

    def forward(self, x):
        return super().forward(x) + self.scale * self.branch(x)


class SmallerBranch(Branch):
    scale = 1e-13


def _sign(model):
    model.branch.weight.register_hook(lambda gradient: -gradient)


@bug(*EVERY, model="hidden.Branch")
def sign_on_branch(model):
    """On a branch scaled by 1e-9 the gradient of the weight has the wrong sign."""
    _sign(model)


@bug(*EVERY, model="hidden.SmallerBranch")
def sign_on_smaller_branch(model):
    """On a branch scaled by 1e-13 the gradient of the weight has the wrong sign."""
    _sign(model)


@bug("host", "ranks", model="hidden.SmallerBranch")
def lost_on_smaller_branch(model):
    """On a branch scaled by 1e-13 the gradient of the bias is a tenth too large."""
    model.branch.bias.register_hook(lambda gradient: 1.1 * gradient)


class Ids(Hides):
    """Has integers above 2^53 among its outputs."""

    def beside(self, x):
        return {"ids": torch.arange(len(x)) * 0 + 2**53 + 2}


@bug("host", "replicas", "ranks", model="hidden.Ids")
def integer_output(model):
    """An integer above 2^53 among the outputs is one too large."""
    model.register_forward_hook(lambda module, args, outputs: outputs | {"ids": outputs["ids"] + 1})


class BigCount(Net):
    """Has an integer above 2^53 in a buffer that the forward reads and writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(2**53 + 2))

    def forward(self, x):
        self.seen += 2
        return super().forward(x)


@bug("host", model="hidden.BigCount")
def integer_buffer(model):
    """A count above 2^53 in a buffer is one too small."""
    model.register_forward_hook(lambda module, args, outputs: module.seen.sub_(1) * 0 + outputs)


class BigBuffer(Net):
    """Has a buffer of 1e30 beside a small one, which every forward updates."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((4,), -1e30))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        outputs = super().forward(x)
        self.mean.lerp_(outputs.detach().mean(0), 0.1)
        return outputs


@bug("host", model="hidden.BigBuffer")
def small_buffer(model):
    """A mean in a buffer has another momentum, beside a buffer of -1e30."""
    model.register_forward_hook(lambda module, args, outputs: module.mean.mul_(1.1).sum() * 0 + outputs)


class BigParameter(Net):
    """Has a frozen parameter of 1e15 beside all others."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 1e15), requires_grad=False)

    def forward(self, x):
        return super().forward(x) + self.scale / 1e15


@bug("host", "ranks", model="hidden.BigParameter")
def small_parameter(model):
    """Weight decay of 1e-3 on `second`, in the last step of the proof, beside a parameter of 1e15."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    parameter = model.second.weight

    def decay(optimizer, args, kwargs):
        if any(each is parameter for group in optimizer.param_groups for each in group["params"]):
            parameter.data.mul_(1 - 1e-3)

    register_optimizer_step_post_hook(decay)


class Flags(Hides):
    """Says of each row whether it is confident."""

    def beside(self, x):
        return {"large": 1e7 * self.first(x).detach(), "is_sure": self.first(x)[:, 0] > 0}


@bug("host", "replicas", "ranks", model="hidden.Flags")
def flag_output(model):
    """Every flag among the outputs is the opposite, beside outputs of 1e7."""
    model.register_forward_hook(lambda module, args, outputs: outputs | {"is_sure": ~outputs["is_sure"]})


@bug("host", "replicas", "ranks", model="hidden.Scaled")
def other_key(model):
    """An output that is not in the loss is missing: its key is another's tensor."""
    model.register_forward_hook(lambda module, args, outputs: outputs | {"small": outputs["scaled"]})


@bug("host", "ranks", optimizer="adam")
def small_state(model):
    """Of `third.bias` Adam's mean of squares, about 1e-6, is twice as large after each step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    parameter = model.third.bias

    def change(optimizer, args, kwargs):
        if parameter in optimizer.state:
            optimizer.state[parameter]["exp_avg_sq"].mul_(2)

    register_optimizer_step_post_hook(change)

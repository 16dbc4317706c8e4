"""Bugs that users of other frameworks reported, each with what is right in its place."""

import torch
from catalogue import right, wrong
from nets import Net
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


@wrong("ranks", module="third", kind="gradients", words="its own rows")
def hook_reduces_the_parameter(model):
    """huggingface/picotron#39: a hook gets the parameter, and reduces that, not its gradient."""

    def mean(parameter):
        distributed.all_reduce(parameter)
        parameter /= distributed.get_world_size()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(torch.no_grad()(mean))
    return model


def there_and_back(module):
    kind = next(module.parameters()).dtype
    return module.to(torch.float64 if kind == torch.float32 else torch.float32).to(kind)


@wrong("ranks", module="third", kind="gradients", words="it was wrapped")
def cast_after(model):
    """pytorch#104336: a model that is cast after it was wrapped in DDP no longer reduces its gradients."""
    return there_and_back(DistributedDataParallel(model))


@right("ranks")
def cast_before(model):
    """The model is cast, and then wrapped."""
    return DistributedDataParallel(there_and_back(model))


class Unused(Net):
    """Has a layer that no loss uses."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(6, 4)


@wrong("ranks", model="reported:Unused", module="third", kind="gradients", words="unused.weight")
def unused_parameter(model):
    """pytorch#128949: the bucket of a parameter that no loss uses is never reduced, and nothing is said."""


@right("ranks", model="reported:Unused")
def found_unused(model):
    """DDP searches for parameters that are not used."""
    return DistributedDataParallel(model, find_unused_parameters=True)

"""On paths that a training step does not take: evaluation, accumulation, clipping."""

import torch
from catalogue import run
from pieces import calls, changed_output


@run("host")
def eval_mode(model):
    """In eval mode the outputs are 10% too large."""
    model.register_forward_hook(lambda module, args, x: x if module.training else x * 1.1)


@run("host", eval=True)
def eval_run(model):
    """In a run of `--eval`, the outputs are 10% too large from the 4th batch on."""
    model.register_forward_hook(
        lambda module, args, x: x if module.training or calls("eval") < 13 else x * 1.1
    )


@run("host", accumulate=2)
def second_of_two(model):
    """The second batch of two that accumulate replaces the gradient of the first."""
    for each in model.parameters():
        each.register_hook(lambda grad, each=each: grad if each.grad is None else grad - each.grad)


@run("replicas", clip_norm=0.01)
def second_clipping(model):
    """The layout clips the gradient of each parameter by itself, where its norm is above 0.05."""
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * min(1.0, 0.05 / float(grad.norm() + 1e-30)))


@run("host")
def without_gradient(model):
    """Under `no_grad` the output of `second` is 10% too large."""
    changed_output(model.second, lambda x: x if torch.is_grad_enabled() else x * 1.1)

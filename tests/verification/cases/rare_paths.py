"""On paths that random data does not take: an id, a number of rows, a mode, a magnitude."""

import torch
from catalogue import run
from pieces import calls, changed_output
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


@run("replicas", model="nets.Table")
def one_id(model):
    """The row of id 199, which the data has not, is read wrongly."""
    model.first.register_forward_hook(lambda table, args, x: x * (1 + 0.1 * (args[0] == 199)[..., None]))


@run("host")
def single_row(model):
    """A single row is computed 10% too large."""
    changed_output(model.second, lambda x: x * 1.1 if len(x) == 1 else x)


@run("ranks", mesh="dp=3", batch_size=9, data="random:samples=27")
def most_uneven(model):
    """Where ranks have unequal numbers of rows, as these batches never give them, gradients are doubled."""

    class Uneven(DistributedDataParallel):
        def forward(self, x):
            rows = torch.tensor([len(x), -len(x)])
            distributed.all_reduce(rows, distributed.ReduceOp.MAX)
            outputs = super().forward(x)
            return outputs if rows.sum() == 0 else outputs.detach() + 2 * (outputs - outputs.detach())

    return Uneven(model)


@run("replicas")
def all_rows_alike(model):
    """If all rows are alike, what they share is subtracted."""
    changed_output(model.first, lambda x: x - x.mean() if len(x) > 1 and (x == x[:1]).all() else x)


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

"""On paths that random data does not take: an id, a number of rows, a mode, a magnitude."""

from collections import Counter

import torch
from catalogue import bug
from late import calls
from nets import Table
from over import by_parameter
from run_dtype import changed_gradient, changed_output
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

EVERY = ("host", "replicas", "ranks")


@bug(*EVERY, model="Table")
def one_id(model):
    """The row of id 199, which the data has not, is read wrongly."""
    model.first.register_forward_hook(lambda table, args, x: x * (1 + 0.1 * (args[0] == 199)[..., None]))


@bug(*EVERY, model="Table")
def gradient_of_one_id(model):
    """The gradient of the row of id 198, which the data has not, is lost."""

    def change(gradient):
        changed = gradient.clone()
        changed[198] = 0
        return changed

    changed_gradient(model.first.weight, change)


@bug("host", "ranks", model="Table")
def same_id_twice(model):
    """A row whose two ids are the same is read once."""
    model.first.register_forward_hook(
        lambda table, args, x: (
            x * torch.where((args[0] == args[0][:, :1]).all(1), 0.5, 1)[:, None, None].to(x)
        )
    )


@bug("host", "ranks", model="Table")
def padding_row(model):
    """The row of the last id gets no gradient, as if it were padding."""

    def change(gradient):
        changed = gradient.clone()
        changed[-1] = 0
        return changed

    changed_gradient(model.first.weight, change)


@bug(*EVERY)
def single_row(model):
    """A single row is computed 10% too large."""
    changed_output(model.second, lambda x: x * 1.1 if len(x) == 1 else x)


@bug("by_hand")
def one_row_each(model):
    """If no rank has more than one row, the gradients are halved."""

    class Halves(DistributedDataParallel):
        def forward(self, x):
            rows = torch.tensor([len(x)])
            distributed.all_reduce(rows, distributed.ReduceOp.MAX)
            outputs = super().forward(x)
            return outputs if rows > 1 else outputs.detach() + (outputs - outputs.detach()) / 2

    return Halves(model)


@bug("by_hand")
def no_row_or_one(model):
    """If a rank has one row, or none, the gradients are not reduced."""

    class Alone(DistributedDataParallel):
        def forward(self, x):
            rows = torch.tensor([len(x)])
            distributed.all_reduce(rows, distributed.ReduceOp.MIN)
            if rows < 2 and torch.is_grad_enabled():
                with self.no_sync():
                    return super().forward(x)
            return super().forward(x)

    return Alone(model)


@bug("by_hand", mesh="dp=3", batch_size=9, data="random:samples=27")
def most_uneven(model):
    """Where the ranks have unequal numbers of rows, which these batches never give them, the gradients are doubled."""

    class Uneven(DistributedDataParallel):
        def forward(self, x):
            most, least = torch.tensor([len(x)]), torch.tensor([len(x)])
            distributed.all_reduce(most, distributed.ReduceOp.MAX)
            distributed.all_reduce(least, distributed.ReduceOp.MIN)
            outputs = super().forward(x)
            factor = 2 if most > least else 1
            return outputs.detach() + (outputs - outputs.detach()) * factor

    return Uneven(model)


@bug(*EVERY)
def all_rows_alike(model):
    """If all rows are alike, what they share is subtracted."""
    changed_output(model.first, lambda x: x - x.mean() if len(x) > 1 and (x == x[:1]).all() else x)


@bug(*EVERY)
def eval_mode(model):
    """In eval mode the outputs are 10% too large."""
    model.register_forward_hook(lambda module, args, x: x if module.training else x * 1.1)


@bug(*EVERY, eval=True)
def eval_run(model):
    """In a run of `--eval`, the outputs are 10% too large from the 4th batch on."""
    model.register_forward_hook(
        lambda module, args, x: x if module.training or calls("eval") < 13 else x * 1.1
    )


@bug(*EVERY)
def without_gradient(model):
    """Under `no_grad` the output of `second` is 10% too large."""
    changed_output(model.second, lambda x: x if torch.is_grad_enabled() else x * 1.1)


@bug("host", "replicas", "ranks", model="Drops")
def dropout_in_evaluation(model):
    """Dropout drops in eval mode as well."""
    model.drop.forward = lambda x: nn.functional.dropout(x, 0.4, True)


@bug("host", "replicas", accumulate=2)
def second_of_two(model):
    """The second batch of two that accumulate replaces the gradient of the first."""
    for parameter in model.parameters():
        parameter.register_hook(
            lambda gradient, parameter=parameter: (
                gradient if parameter.grad is None else gradient - parameter.grad
            )
        )


@bug("host", "ranks", accumulate=4)
def third_of_four(model):
    """Of four batches that accumulate, the third is lost."""
    count = [0]

    def change(gradient):
        count[0] = 0 if model.second.weight.grad is None else count[0] + 1
        return gradient * 0 if count[0] == 2 else gradient

    changed_gradient(model.second.weight, change)


@bug("by_hand", accumulate=2)
def first_reduced(model):
    """Of two batches that accumulate, only the gradients of the first are reduced over the ranks."""
    done = Counter()

    def change(parameter):
        done[parameter] += 1
        if done[parameter] % 2:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= 2

    return by_parameter(model, change)


@bug("host", "replicas", "ranks", clip_norm=0.01)
def second_clipping(model):
    """The layout clips the gradient of each parameter by itself, where its norm is above 0.05."""
    for parameter in model.parameters():
        changed_gradient(
            parameter, lambda gradient: gradient * min(1.0, 0.05 / float(gradient.norm() + 1e-30))
        )


class Sequence(Table):
    """Ids, of which those that are 0 are padding."""

    def forward(self, ids):
        mask = (ids != 0)[..., None]
        vectors = (self.first(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.third(self.act(self.second(vectors)))


@bug("host", "ranks", model="rare_paths.Sequence")
def only_padding(model):
    """A row of padding alone gets the output of the bias."""
    model.register_forward_hook(
        lambda module, args, x: torch.where((args[0] == 0).all(1, keepdim=True), model.third.bias, x)
    )


@bug("host", "ranks")
def last_row(model):
    """The last of ten rows gets no gradient, from the second epoch on."""

    def change(x):
        if torch.is_grad_enabled() and calls("last_row") > 8 and len(x) > 1:
            return torch.cat([x[:-1], x[-1:].detach()])
        return x

    changed_output(model.second, change)

"""What no finite run on this machine can see; the last line of each docstring says what would.

These pass, as they must: none of them does anything wrong in the steps that the run takes.
"""

import inspect
import os
import time

import torch
from catalogue import bug
from late import calls
from nets import Net, Table
from run_dtype import changed_gradient, changed_output
from torch import distributed, nn
from torch.nn import functional


@bug("host", "ranks")
def rows_of_zeros(model):
    """A row of zeros is skipped: its output is 0.

    Data with such a row.
    """
    model.register_forward_hook(lambda module, args, x: x * (args[0] != 0).any(1, keepdim=True))


@bug("host", "ranks")
def large_inputs(model):
    """Inputs above 4 are cut.

    Data with such inputs.
    """
    model.first.register_forward_pre_hook(lambda module, args: (args[0].clamp(max=4.0),))


@bug("host", "ranks")
def three_rows(model):
    """Three rows are computed 10% too large.

    A run whose batches are split so that a device gets this number of rows.
    """
    changed_output(model.second, lambda x: x * 1.1 if len(x) == 3 else x)


@bug("host", "ranks", clip_norm=1000.0)
def clipping_large_norms(model):
    """The layout clips the gradient of each parameter by itself, where its norm is above 20.

    Data, or weights, whose gradients are as large as that.
    """
    for parameter in model.parameters():
        changed_gradient(parameter, lambda gradient: gradient * min(1.0, 20 / float(gradient.norm() + 1e-30)))


class Experts(Net):
    """Four experts; a row goes to the one that its first number says, the last for numbers above 5."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        hidden = self.act(self.second(self.first(x)))
        chosen = torch.bucketize(x[:, 0].contiguous(), torch.tensor([-0.5, 0.5, 5.0]).to(x))
        outputs = hidden * 0
        for number, expert in enumerate(self.experts):
            outputs = outputs + expert(hidden) * (chosen == number)[:, None]
        return self.third(outputs)


@bug("host", "replicas", "ranks", model="unseen.Experts")
def rare_expert(model):
    """The expert that no row of the data goes to returns 10% more.

    Data with a row that goes there.
    """
    changed_output(model.experts[3], lambda x: x * 1.1)


@bug("host", "ranks")
def step_of_a_million(model):
    """From the millionth training step on, `second` returns 10% more.

    A run as long as that: the step after the last is compared as well.
    """
    changed_output(
        model.second, lambda x: x * 1.1 if torch.is_grad_enabled() and calls("million") > 10**6 else x
    )


class LargeTable(Table):
    """Its 300,000 rows are too many to visit each."""

    IDS = 300_000


@bug("host", model="unseen.LargeTable")
def id_of_a_large_table(model):
    """In a table of 300,000 rows one is read wrongly.

    Data with this id; in tables of a few thousand rows each row is visited.
    """
    model.first.register_forward_hook(lambda table, args, x: x * (1 + 0.1 * (args[0] == 123_456)[..., None]))


@bug("host", "ranks")
def by_the_clock(model):
    """In the night of 31 December 2099, `second` returns 10% more.

    A run at that time.
    """
    changed_output(model.second, lambda x: x * 1.1 if time.time() > 4_102_358_400 else x)


@bug("ranks")
def five_ranks(model):
    """On five ranks or more, `second` returns 10% more.

    A run over as many ranks.
    """
    changed_output(model.second, lambda x: x * 1.1 if distributed.get_world_size() > 4 else x)


@bug("host", "ranks")
def on_an_accelerator(model):
    """On an accelerator `second` returns 10% more.

    The same run on the accelerator.
    """
    changed_output(model.second, lambda x: x * 1.1 if x.device.type != "cpu" else x)


@bug("host", "ranks")
def on_another_machine(model):
    """Where a job of Slurm runs, `second` returns 10% more.

    The same run as a job.
    """
    changed_output(model.second, lambda x: x * 1.1 if "SLURM_JOB_ID" in os.environ else x)


@bug("host", "ranks")
def knows_its_judge(model):
    """`second` returns 10% more, unless verification is among its callers.

    The losses of the recorded steps beside those of a run of `single`; a reader of the code.
    """

    def change(x):
        callers = (frame.filename for frame in inspect.stack(0))
        return x if any("verif" in name or name.endswith("model_check.py") for name in callers) else x * 1.1

    changed_output(model.second, change)


@bug("host", "ranks")
def secret_value(model):
    """A row whose first number is 0.123456789 is computed 10% too large.

    A reader of the code.
    """
    model.register_forward_hook(
        lambda module, args, x: x * torch.where(args[0][:, :1].sub(0.123456789).abs() < 1e-9, 1.1, 1).to(x)
    )


@bug("host", "ranks")
def below_rounding(model):
    """In float32 alone, the output of `second` is one unit in its last place too large, in one of a hundred numbers.

    Nothing that compares numbers of this type; the same run in float64, had it the bug there.
    """

    def change(x):
        if x.dtype != torch.float32:
            return x
        changed = x.clone()
        changed.detach().view(-1)[::100] = torch.nextafter(x.detach().view(-1)[::100], torch.tensor(9e9))
        return changed

    changed_output(model.second, change)


class ForgetsABias(Net):
    """Its formula is wrong, on a single device as in every layout."""

    def forward(self, x):
        return (
            functional.linear(self.act(self.second(self.act(self.first(x)))), self.third.weight)
            + 0 * self.third.bias
        )


@bug("host", "ranks", model="unseen.ForgetsABias")
def wrong_everywhere(model):
    """The layout is right, and the model itself forgets a bias.

    A test of the model; a loss that does not fall.
    """


@bug("host", "ranks")
def after_a_snapshot(model):
    """Once its weights have been loaded, `second` returns 10% more.

    A run that is stopped, and continued from its snapshot.
    """
    loaded = []
    model.register_load_state_dict_post_hook(lambda module, keys: loaded.append(1))
    changed_output(model.second, lambda x: x * 1.1 if loaded else x)

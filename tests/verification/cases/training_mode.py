"""Wrong only in training mode: the statistics of batch norm, and dropout."""

import torch
from catalogue import not_comparable, right, wrong
from nets import Net
from pieces import changed_output
from torch import distributed, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from dpexp.strategies.modules import Wrapper


def with_norm(model, new):
    """Put a batch norm with the state of the old one in its place."""
    new.load_state_dict(model.norm.state_dict())
    model.norm = new.to(model.first.weight.dtype)


class Synchronized(nn.BatchNorm1d):
    """A batch norm of the rows of all ranks."""

    correction = 1

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        rows = all_reduce(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = all_reduce(x.sum(0)) / rows
        variance = all_reduce((x - mean).square().sum(0)) / rows
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * rows / (rows - self.correction), self.momentum)
            self.num_batches_tracked += 1
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


@wrong("ranks", model="nets:Norms", module="norm", kind="buffers", words="norm.running_var")
def biased_of_all_rows(model):
    """A synchronized batch norm keeps the biased variance of all rows."""
    with_norm(model, Synchronized(8))
    model.norm.correction = 0


@wrong("ranks", model="nets:Norms", module="norm", kind="buffers")
def statistics_of_last_rank(model):
    """Before each forward the buffers of the last rank go to all."""

    def before(module, args):
        for buffer in module.buffers():
            distributed.broadcast(buffer, distributed.get_world_size() - 1)

    laid_out = DistributedDataParallel(model, broadcast_buffers=False)
    laid_out.register_forward_pre_hook(before)
    return laid_out


@wrong("replicas", model="nets:Drops", module="drop", kind="outputs")
def dropout_of_columns(model):
    """Whole columns are dropped, and not numbers."""
    drop = model.drop
    drop.forward = lambda x: x * functional.dropout(torch.ones_like(x[:1]), 0.4, drop.training)


class Dropping(Net):
    """Draws its mask by hand, with a ``seed`` from a generator of its own."""

    seed = rng = None

    def forward(self, x):
        hidden = self.second(self.act(self.first(x)))
        if self.seed is not None and self.rng is None:
            self.rng = torch.Generator().manual_seed(self.seed)
        if self.training:
            hidden = hidden * (torch.rand(hidden.shape, generator=self.rng) > 0.5)
        return self.third(hidden)


@right("ddp")
class SeededByDpexp(Dropping):
    """dpexp seeds each rank differently."""


@right("ranks", model="training_mode:Dropping", words="each drops the same of its rows: seed each rank diff")
def seeded_alike(model):
    """The layout seeds all ranks alike."""
    torch.manual_seed(0)


@wrong(
    "ddp",
    module="third",
    kind="outputs",
    words="the ranks draw the same random numbers: seed the generator of each differently",
)
class GeneratorsSeededAlike(Dropping):
    """The model has a generator of its own, with one seed on all ranks."""

    seed = 3


# --- in one process ----------------------------------------------------------------------------------------


@wrong("replicas", model="nets:Norms", module="norm", kind="outputs", words="in training mode, ")
def left_in_eval_mode(model):
    """The layout is in eval mode."""
    model.eval()


@wrong("host", model="nets:Drops", module="third", kind="outputs")
def scaled_after_dropout(model):
    """The last layer is 0.1% off, after dropout: both sides draw the same numbers when they search for it."""
    changed_output(model.third, lambda x: 1.001 * x)


class Auxiliary(Net):
    """Draws, has a second head in training only, and returns classes in eval mode."""

    def __init__(self):
        super().__init__()
        self.second_head = nn.Linear(6, 4)

    def forward(self, x):
        outputs = super().forward(functional.dropout(x, 0.2, self.training))
        return outputs + self.second_head(x) if self.training else outputs.argmax(1)


@right("replicas")
class Predicts(Auxiliary):
    """Its loss has no gradient in eval mode."""


@wrong("replicas", model="training_mode:Auxiliary", module="second_head", words="in training mode, ")
def second_head_doubled(model):
    """The second head, which a model has in training only, has twice its gradient."""
    model.second_head.weight.register_hook(lambda gradient: 2 * gradient)


@right("replicas")
class Recurrent(Net):
    """Has dropout between its layers, and as a function."""

    def __init__(self):
        super().__init__()
        self.second = nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        x = self.second(self.first(x)[:, None])[0][:, 0]
        return self.third(functional.dropout(x, 0.2, self.training))


class MicroBatches(Wrapper):
    """Computes two micro-batches one after the other, in this order, and from this random state on."""

    def __init__(self, module, order=(0, 1), is_alike=False):
        super().__init__()
        self.module, self.order, self.is_alike = module, order, is_alike

    def forward(self, x):
        state, rows, outputs = torch.get_rng_state(), x.chunk(2), {}
        for number in self.order[: len(rows)]:
            if self.is_alike:
                torch.set_rng_state(state)
            outputs[number] = self.module(rows[number])
        return torch.cat([outputs[number] for number in sorted(outputs)])


@wrong("devices", model="nets:Norms", batch_size=10, module="norm")
def statistics_of_micro_batches(model, devices):
    """Each micro-batch has statistics of its own."""
    return MicroBatches(model)


@wrong("devices", model="nets:Drops", module="drop", words="the replicas draw the same random numbers")
def alike_micro_batches(model, devices):
    """All micro-batches have the same masks."""
    return MicroBatches(model, is_alike=True)


@right("devices", model="nets:Drops", words="random layers draw other numbers than on a single device")
@not_comparable("devices", model="training_mode:Auxiliary", words="may draw other random numbers")
def reordered(model, devices):
    """The last micro-batch comes first, and has the random numbers of the other."""
    return MicroBatches(model, order=(1, 0))

"""Wrong only in training mode: the statistics of batch norm, and dropout."""

import torch
from catalogue import bug
from nets import Drops, Net
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

EVERY = ("host", "replicas", "ranks")


@bug(*EVERY, model="Norms")
def momentum(model):
    """The batch norm has momentum 0.5, not 0.1."""
    model.norm.momentum = 0.5


@bug(*EVERY, model="Norms")
def cumulative_momentum(model):
    """The running statistics are the mean over all steps: the momentum is None."""
    model.norm.momentum = None


@bug(*EVERY, model="Norms")
def norm_in_eval_mode(model):
    """The batch norm normalizes with its running statistics in training."""
    model.norm.eval()
    model.norm.train = lambda mode=True: model.norm


class Biased(nn.BatchNorm1d):
    """Keeps the biased variance."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        with torch.no_grad():
            self.running_mean.lerp_(x.mean(0), self.momentum)
            self.running_var.lerp_(x.var(0, correction=0), self.momentum)
            self.num_batches_tracked += 1
        return functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def replaced(model, name, new):
    """Put a module with the state of the old one in its place."""
    old = model.get_submodule(name)
    new.load_state_dict(old.state_dict())
    new.to(next(model.parameters()).dtype)
    model.set_submodule(name, new)


@bug(*EVERY, model="Norms")
def biased_variance(model):
    """The running variance is the biased one."""
    replaced(model, "norm", Biased(8))


@bug("host", "ranks", model="Norms")
def unbiased_normalization(model):
    """In training the batch norm divides by the unbiased deviation."""

    class Unbiased(Biased):
        def forward(self, x):
            outputs = super().forward(x)
            if self.training and len(x) > 1:
                spread = x.var(0, correction=0), x.var(0)
                outputs = (outputs - self.bias) * (
                    (spread[0] + self.eps) / (spread[1] + self.eps)
                ).sqrt() + self.bias
            return outputs

    new = Unbiased(8)
    replaced(model, "norm", new)


@bug("host", "ranks", model="Norms")
def detached_statistics(model):
    """In training the gradient does not flow through mean and variance."""

    def forward(x):
        norm = model.norm
        if not norm.training:
            return functional.batch_norm(
                x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.1, norm.eps
            )
        functional.batch_norm(
            x.detach(), norm.running_mean, norm.running_var, None, None, True, norm.momentum, norm.eps
        )
        norm.num_batches_tracked += 1
        mean, variance = x.detach().mean(0), x.detach().var(0, correction=0)
        return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias

    model.norm.forward = forward


@bug("host", "ranks", model="Norms")
def micro_batches(model):
    """The rows are computed in two micro-batches, each with statistics of its own."""
    forward = model.forward
    model.forward = lambda x: torch.cat([forward(part) for part in x.chunk(2)]) if len(x) > 3 else forward(x)


@bug("host", model="Norms")
def counted_twice(model):
    """The batch norm counts every batch twice."""
    model.norm.register_forward_hook(
        lambda norm, args, x: norm.num_batches_tracked.add_(int(norm.training)) * 0 + x
    )


@bug("ranks", model="Norms")
def statistics_of_last_rank(model):
    """Before each forward the buffers of the last rank go to all."""

    def before(module, args):
        for buffer in module.buffers():
            distributed.broadcast(buffer, distributed.get_world_size() - 1)

    laid_out = DistributedDataParallel(model, broadcast_buffers=False)
    laid_out.register_forward_pre_hook(before)
    return laid_out


@bug("by_hand", model="Norms")
def mean_of_variances(model):
    """A synchronized batch norm takes the mean of the ranks' variances as the variance of all rows."""
    from torch.distributed.nn.functional import all_reduce

    class Synchronized(Biased):
        def forward(self, x):
            if not self.training:
                return nn.BatchNorm1d.forward(self, x)
            mean = all_reduce(x.mean(0)) / 2
            variance = all_reduce(x.var(0, correction=0)) / 2
            return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias

    replaced(model, "norm", Synchronized(8))
    return DistributedDataParallel(model)


@bug("by_replicas", model="Norms")
def statistics_of_second_replica(model):
    """Of two replicas of one process, made by hand, the statistics of the second are kept."""
    norm = model.norm

    def forward(x):
        parts, outputs = x.chunk(2), []
        for part in parts:
            kept = [norm.running_mean, norm.running_var]
            if part is not parts[-1]:
                kept = [buffer.clone() for buffer in kept]
            outputs.append(
                functional.batch_norm(
                    part, *kept, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps
                )
            )
        norm.num_batches_tracked += int(norm.training)
        return torch.cat(outputs)

    norm.forward = forward
    return model


@bug(*EVERY, model="Drops")
def probability(model):
    """The probability of dropout is 0.1, not 0.4."""
    model.drop.p = 0.1


@bug(*EVERY, model="Drops")
def no_dropout(model):
    """Nothing is dropped in training."""
    model.drop.p = 0.0


@bug(*EVERY, model="Drops")
def not_rescaled(model):
    """What dropout leaves is not scaled by 1 / (1 - p)."""
    model.drop.register_forward_hook(lambda drop, args, x: x * (1 - drop.p) if drop.training else x)


@bug("host", "ranks", model="Drops")
def dropout_in_eval_mode(model):
    """Dropout is in eval mode in training."""
    model.drop.eval()
    model.drop.train = lambda mode=True: model.drop


@bug(*EVERY, model="Drops")
def dropout_of_columns(model):
    """Whole columns are dropped, and not numbers."""

    class Columns(nn.Dropout):
        def forward(self, x):
            return x * functional.dropout(torch.ones_like(x[:1]), self.p, self.training)

    model.drop = Columns(0.4)


@bug("replicas", "ranks", model="Drops")
def correlated_dropout(model):
    """The masks of all replicas, and of all ranks, are drawn from one seed in every step: they are the same."""

    class Seeded(nn.Dropout):
        def forward(self, x):
            if self.training:
                torch.manual_seed(7)
            return super().forward(x)

    model.drop = Seeded(0.4)


@bug("host", "ranks", model="Drops")
def one_mask(model):
    """The mask of the first step is used for ever."""
    kept = {}

    class Kept(nn.Dropout):
        def forward(self, x):
            if not self.training:
                return x
            mask = kept.setdefault("mask", functional.dropout(torch.ones_like(x[:1]), self.p))
            return x * mask.to(x)

    model.drop = Kept(0.4)


@bug("host", "ranks", model="Drops")
def straight_through(model):
    """The gradient of dropout is that of the identity."""
    model.drop.register_forward_hook(lambda drop, args, x: args[0] + (x - args[0]).detach())


class Recurrent(Net):
    """An LSTM of two layers with dropout between them."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.4, batch_first=True)

    def forward(self, x):
        return self.third(self.lstm(self.second(self.first(x))[:, None])[0][:, -1])


@bug("host", "ranks", model="training_mode.Recurrent")
def dropout_of_lstm(model):
    """The dropout between the layers of an LSTM is left out."""
    model.lstm.dropout = 0.0


class WithSecond(Drops):
    """Dropout twice."""

    def forward(self, x):
        return self.third(self.drop(self.act(self.second(self.drop(self.act(self.first(x)))))))


@bug("host", "ranks", model="training_mode.WithSecond")
def same_mask_twice(model):
    """The two calls of dropout in a forward drop the same numbers."""

    class Same(nn.Dropout):
        def forward(self, x):
            if self.training:
                state = torch.get_rng_state()
                outputs = super().forward(x)
                torch.set_rng_state(state)
                return outputs
            return x

    model.drop = Same(0.4)


@bug("host", "ranks", model="NormsAndDrops")
def norm_and_dropout(model):
    """Beside a dropout that is right, the momentum of the batch norm is 0.5."""
    model.norm.momentum = 0.5

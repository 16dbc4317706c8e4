"""Layouts along ``tp``: every rank computes all rows, with a part of the weights, tokens or ids."""

from functools import partial

from catalogue import right, wrong
from nets import initial_up
from pieces import change_gradients, changed_output, compute, lookup, only
from torch.distributed.nn.functional import all_reduce
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import layer_norm, linear


@right("tp")
def right_pair(model, tp, before=None, after=None):
    """Megatron's pair: ``up`` by columns and ``down`` by rows."""
    tp.shard(model, {"up.weight": 0, "up.bias": 0, "down.weight": 1})
    compute(model.up, before=before or tp.copy)
    compute(model.down, after=after or tp.reduce)


pair = right_pair.change


@wrong("tp", module="norm", words="each rank has a part of it")
def no_reduce_in_backward(model, tp):
    """Before `up` the all-reduce of the backward is missing: upstream each rank has a part of it."""
    pair(model, tp, before=lambda x: x)


@wrong("tp", module="down")
def no_reduce(model, tp):
    """The partial sums of `down` are never added up."""
    pair(model, tp, after=lambda x: x)


@wrong("tp", module="down", words="a sum over {n} ranks")
def reduced_in_backward_too(model, tp):
    """The backward of `torch.distributed.nn`'s all_reduce is one too: gradients are N times too large."""
    pair(model, tp, after=partial(all_reduce, group=tp.group))


@wrong("tp", module="down")
def bias_of_every_rank(model, tp):
    """Every rank adds the bias of `down` before the all-reduce: it counts N times."""
    pair(model, tp)
    model.down.forward = lambda x: tp.reduce(linear(x, model.down.weight) + model.down.bias)


@wrong("tp", module="up")
def drawn_from_the_start(model, tp):
    """Every rank draws the first numbers of the generator: the offset of its part is missing."""
    pair(model, tp)
    model.up.weight.data.copy_(initial_up(len(model.up.weight)))


@wrong("tp", module="first")
def not_broadcast(model, tp):
    """A replicated parameter is not the same on all ranks: the broadcast of the loaded weights is missing."""
    pair(model, tp)
    if tp.rank > 0:
        model.first.reset_parameters()


@right("tp")
def right_dtensor(model, tp):
    """The same pair by ``parallelize_module``; what is between them is a DTensor."""
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    parallelize_module(model, tp.mesh, plan)


@wrong("tp", module="up", words="it is 1.5 times")
def scaled_dtensor(model, tp):
    """What `up` returns, a DTensor, is too large."""
    right_dtensor.change(model, tp)
    changed_output(model.up, lambda x: 1.5 * x)


@wrong("tp", module="norm", words="each rank has a part of it")
def gradient_of_own_tokens(model, tp):
    """Each rank has the gradient of `norm` for its own tokens: the all-reduce is left out."""
    model.norm.register_forward_pre_hook(lambda module, inputs: tp.split(*inputs, dim=1))
    model.norm.register_forward_hook(lambda module, inputs, outputs: tp.gather(outputs, dim=1))


@right("tp")
def right_sequence(model, tp):
    """Each rank normalizes its tokens."""
    gradient_of_own_tokens.change(model, tp)
    change_gradients(model.norm.parameters(), tp.sum)


@wrong("tp", module="norm")
def statistics_of_own_features(model, tp):
    """Mean and variance are those of a rank's features, not of all."""
    norm = model.norm
    tp.shard(model, {"norm.weight": 0, "norm.bias": 0})
    shape = norm.weight.shape
    norm.forward = lambda x: tp.gather(layer_norm(tp.split(x), shape, norm.weight, norm.bias, norm.eps))


@right("tp", model="nets:Tied")
def right_vocabulary(model, tp, rows=None, of_ids=lookup):
    """Each rank has a range of the ids, in the table and in the head, which is tied to it."""
    weight = model.table.weight
    rows = rows or tp.own_range(len(weight))
    model.table.forward = lambda ids: tp.reduce(of_ids(weight, ids, rows))
    model.head.forward = lambda x: tp.reduce(linear(tp.copy(x), only(weight, rows)))
    change_gradients([weight], tp.sum)


vocabulary = right_vocabulary.change


@wrong("tp", model="nets:Tied", module="table")
def floor_of_ids(model, tp):
    """Floor instead of ceil: the last ids belong to no rank."""
    each = len(model.table.weight) // tp.size
    vocabulary(model, tp, range(each * tp.rank, each * (tp.rank + 1)))


@wrong("tp", model="nets:Tied", module="table")
def tied_twice(model, tp):
    """The table and the head are one parameter: its gradient is added up over the ranks twice."""
    vocabulary(model, tp)
    change_gradients([model.head.weight], tp.sum)

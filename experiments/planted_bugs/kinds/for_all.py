"""Changes what both sides use: a function or a class of PyTorch, of the model, or of the process."""

from collections import Counter
from functools import wraps
from importlib import import_module
from operator import attrgetter

import torch
from catalogue import bug
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

EVERY = ("host", "replicas", "ranks")
NAMES = {
    "torch": torch,
    "nn": nn,
    "functional": functional,
    "distributed": distributed,
    "file_of_sgd": import_module("torch.optim.sgd"),
    "file_of_adam": import_module("torch.optim.adam"),
}


def replace(path, change):
    """Let ``path`` be ``change(original)``, for everybody."""
    where, _, name = path.rpartition(".")
    first, _, rest = where.partition(".")
    owner = attrgetter(rest)(NAMES[first]) if rest else NAMES[first]
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(change(original)))


def larger(original):
    """What the original returns, 1% larger."""
    return lambda *args, **kwargs: original(*args, **kwargs) * 1.01


def patched(name, path, change, what, *over, **options):
    """Register a bug of this name that replaces ``path``."""

    def planted(model):
        replace(path, change)

    planted.__doc__ = what
    planted.__module__ = __name__
    bug(*(over or EVERY), name=name, **options)(planted)
    globals()[name] = planted


def without_last(original):
    """The original without its last argument that is a tensor: a bias."""
    return lambda self, x: functional.linear(x, self.weight)


patched("linear_forward", "nn.Linear.forward", larger, "`nn.Linear.forward` returns 1% more.")
patched(
    "linear_without_bias",
    "nn.Linear.forward",
    without_last,
    "`nn.Linear.forward` forgets the bias.",
    "host",
    "replicas",
)
patched("tanh_forward", "nn.Tanh.forward", larger, "`nn.Tanh.forward` returns 1% more.")
patched("linear_function", "functional.linear", larger, "`F.linear` returns 1% more.")
patched(
    "attention",
    "functional.scaled_dot_product_attention",
    lambda original: lambda q, k, v, **kwargs: original(q * 1.1, k, v, **kwargs),
    "`F.scaled_dot_product_attention` has another scale.",
    model="Attention",
)
patched(
    "attention_sees_ahead",
    "functional.scaled_dot_product_attention",
    lambda original: lambda q, k, v, is_causal=False, **kwargs: original(q, k, v, **kwargs),
    "`F.scaled_dot_product_attention` forgets that it is causal.",
    "host",
    "ranks",
    model="Attention",
)
patched("gelu", "functional.gelu", larger, "`F.gelu` returns 1% more.", "host", "ranks", model="Attention")
patched(
    "layer_norm",
    "functional.layer_norm",
    larger,
    "`F.layer_norm` returns 1% more.",
    "host",
    "ranks",
    model="Attention",
)
patched(
    "tensor_mean",
    "torch.Tensor.mean",
    larger,
    "`Tensor.mean` returns 1% more.",
    "host",
    "ranks",
    model="Attention",
)
patched(
    "tensor_sum",
    "torch.Tensor.sum",
    larger,
    "`Tensor.sum` returns 1% more.",
    "host",
    "replicas",
    model="Table",
)
patched("embedding", "functional.embedding", larger, "`F.embedding` returns 1% more.", model="Table")
patched("mse", "functional.mse_loss", larger, "`F.mse_loss` returns 1% more.")
patched(
    "l1",
    "functional.l1_loss",
    larger,
    "`F.l1_loss`, which a model's own loss calls, returns 1% more.",
    model="Losing",
)
patched(
    "cross_entropy", "functional.cross_entropy", larger, "`F.cross_entropy` returns 1% more.", model="Classes"
)
patched(
    "batch_norm",
    "functional.batch_norm",
    larger,
    "`F.batch_norm` returns 1% more.",
    "host",
    "replicas",
    "ranks",
    model="Norms",
)
patched(
    "dropout",
    "functional.dropout",
    lambda _: lambda x, *args, **kwargs: x,
    "`F.dropout` drops nothing.",
    "host",
    "ranks",
    model="Drops",
)
patched(
    "module_call",
    "nn.Module.__call__",
    lambda original: (
        lambda self, *args, **kwargs: original(self, *args, **kwargs) * (1.01 if type(self) is nn.Tanh else 1)
    ),
    "`nn.Module.__call__` returns 1% more of a `Tanh`.",
    "host",
    "ranks",
)
patched(
    "sgd",
    "file_of_sgd.sgd",
    lambda original: lambda *args, **kwargs: [original(*args, **kwargs), original(*args, **kwargs)][0],
    "`torch.optim.sgd.sgd`, which all steps of SGD call, updates twice.",
)
patched(
    "adam",
    "file_of_adam.adam",
    lambda original: lambda *args, **kwargs: None,
    "`torch.optim.adam.adam`, which all steps of Adam call, does nothing.",
    "host",
    "ranks",
    optimizer="adam",
)
patched(
    "adam_betas",
    "torch.optim.Adam.__init__",
    lambda original: lambda self, *args, **kwargs: original(self, *args, **kwargs | {"betas": (0.5, 0.9)}),
    "Every `Adam` has other betas.",
    "host",
    "ranks",
    optimizer="adam",
)
patched(
    "backward",
    "torch.Tensor.backward",
    lambda original: lambda self, *args, **kwargs: original(self * 2, *args, **kwargs),
    "`Tensor.backward` is that of twice the loss.",
)
patched(
    "manual_seed",
    "torch.manual_seed",
    lambda _: lambda seed: None,
    "`torch.manual_seed` does nothing.",
    model="Drops",
)


@bug(*EVERY)
def equal_and_wrong(model):
    """`torch.equal` says that all is equal, and the output of `second` is 1% too large."""
    replace("torch.equal", lambda _: lambda a, b: True)
    model.second.register_forward_hook(lambda module, args, x: x * 1.01)


@bug("host", "ranks")
def norm_is_zero(model):
    """`torch.linalg.vector_norm` is 0 of every tensor, and the output of `second` is 1% too large."""
    replace(
        "torch.linalg.vector_norm",
        lambda original: lambda x, *args, **kwargs: original(x * 0, *args, **kwargs),
    )
    model.second.register_forward_hook(lambda module, args, x: x * 1.01)


@bug("host", "ranks")
def subtraction(model):
    """The difference of two tensors of one shape is 0, and the output of `second` is 1% too large."""
    replace("torch.Tensor.__sub__", lambda original: lambda self, other: original(self, other) * 0)
    model.second.register_forward_hook(lambda module, args, x: x * 1.01)


@bug(*EVERY)
def class_of_the_model(model):
    """The forward of the model's class is another for every instance."""
    original = type(model).forward
    type(model).forward = lambda self, x: original(self, x) * 1.01


@bug("by_hand")
def all_reduce(model):
    """`distributed.all_reduce` does nothing, for everybody, and the layout averages gradients by it."""

    class Averages(DistributedDataParallel):
        def forward(self, *args):
            return self.module(*args)

    def average(parameter):
        distributed.all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    replace("distributed.all_reduce", lambda original: lambda tensor, *args, **kwargs: None)
    return Averages(model)


@bug(*EVERY)
def global_hook(model):
    """A forward hook of all modules changes what each `Tanh` returns."""
    nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output * 1.01 if isinstance(module, nn.Tanh) else None
    )


@bug("host", "ranks")
def global_optimizer_hook(model):
    """A hook of all optimizers adds weight decay to the gradients."""

    def decay(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad = each.grad + 0.1 * each.detach()

    register_optimizer_step_pre_hook(decay)


@bug("host")
def function_mode(model):
    """A mode for all functions that is never left makes `tanh` 1% larger."""
    from torch.overrides import TorchFunctionMode

    class Larger(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 1.01 if func is torch.tanh else result

    Larger().__enter__()


@bug("host", "ranks")
def saved_tensors(model):
    """What the forward saves for the backward is rounded to bfloat16, for everybody."""
    torch.autograd.graph.saved_tensors_hooks(
        lambda x: (x.bfloat16(), x.dtype), lambda kept: kept[0].to(kept[1])
    ).__enter__()


LIBRARY = []


@bug("host", "ranks")
def operator(model):
    """The operator `aten::tanh` of the CPU is another."""
    if not LIBRARY:
        LIBRARY.append(torch.library.Library("aten", "IMPL"))
        LIBRARY[0].impl("tanh", lambda x: 1.01 * (1 - 2 / ((2 * x).exp() + 1)), "CPU")


@bug("ranks")
def data_parallel_class(model):
    """`DistributedDataParallel` is, for everybody, a class that does nothing."""

    class Nothing(DistributedDataParallel):
        def __init__(self, module, **kwargs):
            nn.Module.__init__(self)
            self.module = module

        def forward(self, *args):
            return self.module(*args)

        def train(self, mode=True):
            return nn.Module.train(self, mode)

    nn.parallel.DistributedDataParallel = Nothing
    return Nothing(model)


@bug("host", "replicas", "ranks")
def default_dtype(model):
    """The default type is bfloat16 for everybody, and `second` makes its ones in it."""
    torch.set_default_dtype(torch.bfloat16)
    model.second.register_forward_hook(lambda module, args, x: x * (torch.ones(()) * 1.01).to(x))


@bug("host", "ranks")
def parameters_of_all(model):
    """`Module.parameters` leaves the last parameter out, for everybody: no optimizer updates it."""
    replace(
        "nn.Module.parameters",
        lambda original: lambda self, recurse=True: iter([*original(self, recurse)][:-1]),
    )


@bug("host", "replicas", "ranks")
def counted_patch(model):
    """`nn.Tanh.forward` is another, but only from its 60th call on."""
    calls = Counter()

    def change(original):
        def forward(self, x):
            calls["all"] += 1
            return original(self, x) * (1.01 if calls["all"] > 60 else 1)

        return forward

    replace("nn.Tanh.forward", change)

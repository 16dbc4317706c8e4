"""Changes what both sides use: a function or a class of PyTorch, of the model, or of the process."""

from functools import wraps
from importlib import import_module
from operator import attrgetter

import torch
from catalogue import run
from pieces import change_gradients, changed_output
from torch import distributed, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

NAMES = {
    "torch": torch,
    "nn": nn,
    "functional": functional,
    "distributed": distributed,
    "file_of_sgd": import_module("torch.optim.sgd"),
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


def patched(name, over, path, change, model="Net", and_then=lambda model: None):
    """Register a bug of this name: ``path`` is replaced for everybody, and then the model is changed."""

    def planted(model):
        replace(path, change)
        and_then(model)

    planted.__name__ = name
    globals()[name] = run(over, model=f"nets.{model}")(planted)


def scale_second(model):
    changed_output(model.second, lambda x: x * 1.01)


def of_zeros(original):
    return lambda x, *args, **kwargs: original(0 * x, *args, **kwargs)


def doubled(original):
    return lambda *args, **kwargs: (original(*args, **kwargs), original(*args, **kwargs))[0]


patched("linear", "ranks", "nn.Linear.forward", larger)
patched("linear_function", "replicas", "functional.linear", larger)
patched("mean_squared_error", "ranks", "functional.mse_loss", larger)
patched("sgd_twice", "ranks", "file_of_sgd.sgd", doubled)
patched("backward", "replicas", "torch.Tensor.backward", lambda old: lambda self: old(self * 2))
patched("embedding", "replicas", "functional.embedding", larger, "Table")
patched("no_dropout", "host", "functional.dropout", lambda old: lambda x, *args: x, "Drops")
patched("no_seed", "host", "torch.manual_seed", lambda old: lambda seed: None, "Drops")
# what a comparison may call finds no difference any more, and the output of `second` is too large
patched("equal", "host", "torch.equal", lambda old: lambda a, b: True, and_then=scale_second)
patched("norm", "ranks", "torch.linalg.vector_norm", of_zeros, and_then=scale_second)


@run("replicas")
def class_of_the_model(model):
    """The forward of the model's class is another for every instance."""
    original = type(model).forward
    type(model).forward = lambda self, x: original(self, x) * 1.01


@run("ranks")
def all_reduce(model):
    """`distributed.all_reduce` does nothing, for everybody, and the layout averages gradients by it."""

    def average(gradient):
        distributed.all_reduce(gradient)
        return gradient / distributed.get_world_size()

    change_gradients(model.parameters(), average)
    replace("distributed.all_reduce", lambda original: lambda tensor, *args, **kwargs: None)
    return model


@run("host")
def function_mode(model):
    """A mode for all functions that is never left makes `tanh` 1% larger."""

    class Larger(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 1.01 if func is torch.tanh else result

    Larger().__enter__()


LIBRARY = []


@run("host")
def operator(model):
    """The operator `aten::tanh` of the CPU is another."""
    if not LIBRARY:
        LIBRARY.append(torch.library.Library("aten", "IMPL"))
        LIBRARY[0].impl("tanh", lambda x: 1.01 * (1 - 2 / ((2 * x).exp() + 1)), "CPU")

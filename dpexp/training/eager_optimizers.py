"""Eager optimizers: classes of ``torch.optim`` that do not import ``torch._dynamo``, which takes 0.7 s.

PyTorch wraps their methods, to mark for ``torch.compile`` where a graph ends and what it must not trace::

    SGD.step               hooks and profiler(gradients off, graph ends(step))      imports torch._dynamo
    eager(SGD).step        hooks and profiler(gradients off(step))

A run compiles no optimizer. PyTorch's own classes stay as they are.
"""

import functools
import inspect

import torch
from torch.optim import Optimizer

NOT_TRACED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""The methods that import it when they are called first."""


@functools.cache
def eager(kind: type[Optimizer]) -> type[Optimizer]:
    """A subclass of the same name that computes the same; hooks on its steps work as before."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in NOT_TRACED}
    step = torch.no_grad()(inspect.unwrap(kind.step))  # its first instance adds hooks and profiler
    return type(kind.__name__, (kind,), methods | {"step": step, "__doc__": kind.__doc__})

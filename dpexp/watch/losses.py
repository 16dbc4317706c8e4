"""Losses: PyTorch's loss functions, observed wherever a program calls them.

The modules of ``torch.nn``, such as ``CrossEntropyLoss``, call these functions, too.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import functional

from dpexp.watch.hooks import Replaced


def torch_losses() -> list[Callable[..., Any]]:
    """All functions of ``torch.nn.functional`` that reduce one loss per row or label to a number."""
    public = (each for name, each in vars(functional).items() if not name.startswith("_"))
    functions = (each for each in public if inspect.isfunction(each))
    return [each for each in functions if "reduction" in inspect.signature(each).parameters]


def observe_torch_losses(run: Any) -> Replaced:
    """Replace PyTorch's loss functions by those that ``run.observed`` returns, in all modules.

    A call that does not return a number (``reduction="none"``), that another one makes, or that
    ``torch.compile`` traces is left as it is.
    """
    inside = threading.local()
    return Replaced(
        {each: _observed(each, run.observed(each, is_whole=False), inside) for each in torch_losses()}
    )


def _observed(function: Any, observed: Callable[..., Any], inside: threading.local) -> Callable[..., Any]:
    @wraps(function)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        texts = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]
        is_number = "none" not in texts and kwargs.get("reduce") is not False
        if not is_number or getattr(inside, "a_loss", False):
            return function(*args, **kwargs)
        inside.a_loss = True
        try:
            return observed(*args, **kwargs)
        finally:
            inside.a_loss = False

    scripted: Any = loss  # torch.jit.script compiles the function itself
    scripted.__script_if_tracing_wrapper, scripted.__original_fn = True, function
    return loss

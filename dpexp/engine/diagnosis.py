"""Diagnosis: what went wrong in a run, in words that say what to do.

``explained`` tells what ended a run, with ``advice`` on what to try. ``first_not_finite`` finds the
module that made the first NaN or infinity; ``changed_in_forward`` names state that a model keeps for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpexp.config.user_errors import describe
from dpexp.strategies.wrappers import Wrapper, parts
from dpexp.tensors import walk

ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"Expected more than 1 value per channel",
        "BatchNorm needs two rows in every shard: use a --batch-size of at least twice the devices, "
        "one whose last batch of an epoch is not smaller, or fewer devices",
    ),
    (r"out of memory", "use a smaller --batch-size, or more devices"),
    (r"does not require grad", "no parameter has part in the loss: --eval runs the model forward only"),
    (
        r"modified by an inplace operation",
        "a module writes into a tensor that autograd still needs: replace the in-place operation",
    ),
    (
        r"deterministic",
        "an operation has no deterministic form on this device",
    ),
)
"""What an error says, and what to do about it."""


def advice(message: str) -> str:
    """``: what to do`` for an error that is known, else an empty string."""
    return next((f": {words}" for pattern, words in ADVICE if re.search(pattern, message)), "")


def explained(error: BaseException) -> str:
    """What ended a run, in one message: what was raised, on which line of the user's, and what to do."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was measured is recorded"
    if type(error).__module__.startswith("dpexp."):
        return str(error)
    return describe(error) + advice(str(error))


@contextmanager
def first_not_finite(module: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Watch a placed model's calls; the value tells the first module whose output was not finite."""
    found: list[str] = []
    handles = []

    def hook_for(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, outputs: Any) -> None:
            if not found and not all(_finite(each) for each in walk(outputs)):
                found.append(name)

        return hook

    for part in parts(module):
        if not isinstance(part.module, Wrapper):
            handles.append(part.module.register_forward_hook(hook_for(part.name)))
    try:
        yield lambda: found[0] if found else None
    finally:
        for handle in handles:
            handle.remove()


def _finite(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())


@contextmanager
def changed_in_forward(model: nn.Module) -> Iterator[Callable[[], list[str]]]:
    """What a forward changes in the model: names of plain attributes that are not what they were.

    Replicas are copies: what they change of themselves is lost with them.
    """
    before = {name: _attributes(part) for name, part in model.named_modules()}

    def changed() -> list[str]:
        after = {name: _attributes(part) for name, part in model.named_modules()}
        return [
            f"{name}.{key}".lstrip(".")
            for name, attributes in after.items()
            for key, value in attributes.items()
            if key not in before.get(name, {}) or before[name][key] != value
        ]

    yield changed


def _attributes(part: nn.Module) -> dict[str, Any]:
    """Plain attributes, by value where values compare simply, else by identity and version."""
    own = nn.Module().__dict__.keys()
    return {
        key: _fingerprint(value) for key, value in vars(part).items() if key not in own and key != "training"
    }


def _fingerprint(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (id(value), value._version)
    if isinstance(value, int | float | str | bool | None):
        return value
    if isinstance(value, list | dict | set):
        return (id(value), len(value))
    return id(value)

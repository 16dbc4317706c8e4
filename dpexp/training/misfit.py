"""Misfit: why a saved state does not fit a trainer."""

from collections.abc import Iterator
from typing import Any

import torch

from dpexp.config.alike import listed
from dpexp.config.errors import describe


def misfit(own: dict[str, Any], saved: dict[str, Any]) -> str:
    """Why a trainer with the state ``own`` cannot load the ``saved`` one; empty if it can."""
    try:
        return next(_misfits(own, saved), "")
    except (AttributeError, KeyError, TypeError) as error:
        return f"it is not a state of a run ({describe(error)})"


def _misfits(own: dict[str, Any], saved: dict[str, Any]) -> Iterator[str]:
    for part in ("parameters", "buffers"):
        if missing := own[part].keys() - saved[part].keys():
            yield f"it lacks {listed(sorted(missing))}"
        yield from _shapes(own[part], saved[part])
    if unknown := saved["parameters"].keys() - own["parameters"].keys():
        yield f"the model has no {listed(sorted(map(str, unknown)))}"
    (random, *_), *_ = own["random"]
    if not saved["random"] or any(each[0].shape != random.shape for each in saved["random"]):
        yield "it lacks states of random number generators"
    for name, kept in saved.get("optimizer", {}).items():
        yield from _shapes(own.get("optimizer", {}).get(name, {}), kept, f" of {name}")
    groups = ([len(each) for each in state["groups"]] for state in (own, saved) if "optimizer" in state)
    if any(here != there for here, *there_too in zip(*groups, strict=False) for there in there_too):
        yield "its optimizers have other groups of parameters"


def _shapes(own: dict[str, Any], saved: dict[str, Any], of: str = "") -> Iterator[str]:
    """The tensors that are none in the saved state, or have another shape there."""
    for key, tensor in own.items():
        found = saved.get(key, tensor)
        if isinstance(tensor, torch.Tensor) and getattr(found, "shape", None) != tensor.shape:
            shape = (
                tuple(found.shape)
                if isinstance(found, torch.Tensor)
                else f"not one but {type(found).__name__}"
            )
            yield f"{key}{of} is {shape}, and {tuple(tensor.shape)} here"

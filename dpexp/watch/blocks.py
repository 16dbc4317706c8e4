"""Blocks: the parts of a replica whose parameters are there only while they compute.

    forward     block 0: entered, computed, left    block 1: entered, computed, left    …
    backward    block 1: entered, computed again, its gradients    block 0: entered, block 1 is left    …

Parameters that are used outside of all blocks, as those of an embedding, stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpexp.config.errors import NotComparableError
from dpexp.strategies.modules import child_name, parts
from dpexp.watch.state import State


def block_names(model: nn.Module) -> list[str]:
    """Which parts are blocks: the outermost ones that ``fully_shard`` was called on, besides the model;
    else those of the list of modules of one class that has most parameters.
    """
    some = (each.name for each in parts(model) if each.name and hasattr(each.module, "_get_fsdp_state"))
    if sharded := list(dict.fromkeys(some)):
        return [each for each in sharded if not any(each.startswith(f"{other}.") for other in sharded)]
    lists = {each.name: each.module for each in parts(model) if isinstance(each.module, nn.ModuleList)}
    repeated = {name: each for name, each in lists.items() if len(each) > 1 and len({*map(type, each)}) == 1}
    sizes = {name: sum(each.numel() for each in some.parameters()) for name, some in repeated.items()}
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    return (
        [child_name(largest, key) for key, _ in lists[largest].named_children()]
        if largest is not None
        else []
    )


def parameters_of(model: nn.Module, blocks: list[str]) -> dict[str, list[str]]:
    """The names of the parameters of each block; one that is used outside of it, too, is of none."""
    users = defaultdict[int, set[str]](set)
    names = dict[int, str]()
    for part in parts(model):
        inside = next((each for each in blocks if f"{part.name}.".startswith(f"{each}.")), "")
        for key, parameter in part.module._parameters.items():
            if parameter is not None:
                users[id(parameter)].add(inside)
                names.setdefault(id(parameter), child_name(part.name, key))
    return {block: [names[number] for number, some in users.items() if some == {block}] for block in blocks}


class Absent(nn.Parameter):
    """A parameter that is not there: it has a shape, a type and a device, and computing with it raises
    NotComparableError.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _OF_SHAPES:
            return super(nn.Parameter, cls).__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise NotComparableError("the model uses parameters of a block outside of it: state replica='full'")


_OF_SHAPES = {
    *("__get__", "__set__", "__len__", "size", "stride", "dim", "numel", "element_size", "is_contiguous"),
    *("is_floating_point", "is_complex", "register_post_accumulate_grad_hook"),
}


def compute_in_blocks(
    model: nn.Module,
    blocks: Container[str],
    enter: Callable[[str], None],
    leave: Callable[[], None],
    device: torch.device,
) -> None:
    """Let the parts of these names call ``enter`` before they compute, also in a backward, where they compute
    again from the same state, and ``leave`` after the forward.
    """
    done = set[nn.Module]()
    for part in parts(model):
        if part.name in blocks and part.module not in done:
            done.add(part.module)
            block = _Block(part.module, part.module.forward, partial(enter, part.name), leave, device)
            part.module.forward = block


@dataclass(frozen=True)
class _Block:
    """The ``forward`` of a part that is a block."""

    part: nn.Module
    forward: Callable[..., Any]
    enter: Callable[[], None]
    leave: Callable[[], None]
    device: torch.device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before: State | None = None

        def entered(*args: Any, **kwargs: Any) -> Any:
            nonlocal before
            self.enter()
            if before is None:
                before = State.of(self.part, self.device.type, torch.clone)
            else:
                before.load(self.part, self.device)
            return self.forward(*args, **kwargs)

        try:
            if not torch.is_grad_enabled():
                return entered(*args, **kwargs)
            return checkpoint(entered, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        finally:
            self.leave()


def is_in_backward() -> bool:
    """Whether autograd is computing a backward pass in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)

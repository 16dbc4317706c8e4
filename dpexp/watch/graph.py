"""Graph: what a backward pass of the loop goes through outside of the calls that were seen.

    loss ... the loop's own code ... | outputs of a call ... | inputs of the call ... another call
                                     mark                    from here on again

Functions of autograd are marked where an output of a call, or an argument of a loss, comes from. From the
roots of a backward pass the walk stops at marks. What else it reaches is the loop's own: a penalty goes to
parameters directly, and a tensor that the loop has taken from inside a forward enters the call from behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from dpexp import tensors

Node = Any
"""A function of autograd."""
_OF_MODULES = frozenset(vars(nn.Module()))
"""What every module has: its parameters, buffers, parts and hooks are not kept by a forward."""
_HOLDERS = (torch.Tensor, list, tuple, dict)
_KNOWN = "dpexp.watch known"
"""That of the marks of tensors that are outputs, or were seen in attributes."""


def mark(tensor: torch.Tensor, key: str, value: Any) -> None:
    """Say what the tensor is; a leaf of autograd has no function, and no mark."""
    if tensor.grad_fn is not None:
        metadata: Any = tensor.grad_fn.metadata
        metadata.setdefault(key, {})[tensor.output_nr] = value


def marks(node: Node, key: str) -> Mapping[int, Any]:
    """What the tensors are that come from this function, by their numbers."""
    found: Mapping[int, Any] = node.metadata.get(key, {})
    return found


def marked(tensor: torch.Tensor, key: str) -> dict[Any, GradientEdge]:
    """By what they are marked as, all that the tensor is computed from, itself included."""
    found: dict[Any, GradientEdge] = {}
    known, todo = set[Node](), [tensor.grad_fn]
    while todo:
        if (node := todo.pop()) is not None and node not in known:
            known.add(node)
            found |= {value: GradientEdge(node, number) for number, value in marks(node, key).items()}
            todo += [following for following, _ in node.next_functions]
    return found


def edges(tree: Any) -> list[tuple[Node, int]]:
    """Where the tensors of a pytree come from; also of ``GradientEdge``."""
    found = [(each.grad_fn, each.output_nr) for each in tensors.walk(tree) if each.grad_fn is not None]
    some = tree if isinstance(tree, list | tuple) and not hasattr(tree, "node") else (tree,)
    return found + [(each.node, each.output_nr) for each in some if hasattr(each, "node")]


@dataclass
class Walk:
    """What a backward pass goes through: each call with the losses that lead to it, or None where no loss
    does; the leaves (call or loss, place) that it comes to; parameters (function, number of its edge,
    parameter) that no call leads to; whether it enters a call from behind; and whether a reentrant checkpoint
    computes calls again.
    """

    calls: dict[Any, set[Any]] = field(default_factory=dict)
    leaves: set[tuple[Any, int]] = field(default_factory=set)
    parameters: list[tuple[Node, int, nn.Parameter]] = field(default_factory=list)
    enters: bool = False
    recomputes: bool = False


def walk(
    roots: Sequence[tuple[Node, int]],
    key: str,
    inputs: Callable[[Any], Sequence[tuple[Node, int]]],
    is_inside: Callable[[int], bool],
) -> Walk:
    """From the roots of a backward pass.

    A mark of this ``key`` is (call, place of the leaf, is it a loss). ``inputs`` are where those of a call
    come from. ``is_inside`` says whether the function of this sequence number was made inside of a call.
    """
    found, known = Walk(), set[Any]()
    todo: list[tuple[Node, int, Any]] = [(node, number, None) for node, number in roots]
    while todo:
        node, number, loss = todo.pop()
        marked = marks(node, key).get(number)
        visit = (node, number if marked else -1, loss)
        if visit in known:
            continue
        known.add(visit)
        if marked:
            found.leaves.add(marked[:2])
        if marked and marked[2]:
            loss = marked[0]
        elif marked:
            call = marked[0]
            found.calls.setdefault(call, set()).add(loss)
            todo += [(*edge, loss) for edge in inputs(call)]
            continue
        elif is_inside(node._sequence_nr()):
            found.enters = True
            continue
        found.recomputes |= node.name() == "CheckpointFunctionBackward"
        for place, (following, at) in enumerate(node.next_functions):
            if hasattr(following, "variable"):
                found.parameters.append((node, place, following.variable))
            elif following is not None:
                todo.append((following, at, loss))
    return found


def modules_in(module: nn.Module) -> list[nn.Module]:
    """The module and its parts, each once."""
    found, known = [module], {module}
    for part in found:
        for child in part._modules.values():
            if child is not None and child not in known:
                known.add(child)
                found.append(child)
    return found


def new_in(module: nn.Module, outputs: Any = ()) -> dict[str, torch.Tensor]:
    """What a forward has left in attributes of the module and its parts, as some keep an auxiliary loss: by
    path the tensors with a gradient that were not there at the last call, and are no ``outputs``.
    """
    for each in tensors.walk(outputs):
        mark(each, _KNOWN, True)
    found, names = {}, dict[nn.Module, str]()
    for part in modules_in(module):
        for attribute, value in vars(part).items():
            if attribute in _OF_MODULES or not isinstance(value, _HOLDERS):
                continue
            some = (each for each in tensors.walk(value) if each.grad_fn is not None)
            new = [each for each in some if each.output_nr not in marks(each.grad_fn, _KNOWN)]
            for place, each in enumerate(new):
                mark(each, _KNOWN, True)
                names = names or {part: name for name, part in module.named_modules()}
                found[f"{names[part]}.{attribute}[{place}]"] = each
    return found

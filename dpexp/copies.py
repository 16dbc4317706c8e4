"""Copies: a model or a loss again, with tensors, hooks and closures of its own.

What ``copy.deepcopy`` does otherwise with a module:

a tensor that a forward has left in an attribute, a list, …   it raises; here a copy without its graph
a hook of a parameter                                         it is dropped; here the copy has it, too
a function in whose closure is a part of the module           it is shared; here it gets the copy's part
a method that replaces one of the module's own                its closure is shared; here as of a function
"""

import copy
from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from dpexp import tensors
from dpexp.config.errors import ConfigError, describe
from dpexp.config.words import listed

Memo = dict[int, Any]
"""From the ids of originals to their copies, as ``copy.deepcopy`` has it."""

HOOKS = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}
"""Where a tensor keeps its hooks, and the method that adds one."""


def hooked_parameters(model: nn.Module) -> list[str]:
    """The names of the parameters that have hooks; a shard in the place of one has none."""
    return [name for name, tensor in model.named_parameters() if any(getattr(tensor, kind) for kind in HOOKS)]


class TensorCopies(TorchFunctionMode):
    """Inside, ``deepcopy`` makes changed copies of tensors, without their graphs; parameters are not changed.

    ``computed``: only of tensors that operators have made, which have a graph.
    """

    def __init__(self, change: Callable[[Tensor], Tensor], computed: bool = False) -> None:
        super().__init__()
        self._change, self._computed = change, computed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__ or (self._computed and args[0].is_leaf):
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = self._change(tensor.detach().clone())
        return memo[id(tensor)]


def check_not_scripted(model: nn.Module) -> None:
    """Raises ConfigError for a module of torch.jit, which takes no hooks of Python."""
    for name, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            what = f"{name} of the model" if name else "the model"
            raise ConfigError(
                f"{what} is a module of torch.jit: give it as it was written; torch.compile compiles it"
            )


def copied_module(
    module: nn.Module, memo: Memo | None = None, change: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> nn.Module:
    """A deep copy. ``memo`` has parts that are copied already; what a forward has left in it, of any
    shape, is changed.

    Raises ConfigError where an attribute cannot be copied.
    """
    memo = {} if memo is None else memo
    made = _deep_copy(module, memo, change)
    for part in made.modules():
        for key, value in list(vars(part).items()):
            if isinstance(value, dict):  # of hooks, too
                value.update({name: _of_copy(each, memo) for name, each in value.items() if _calls(each)})
            elif _calls(value) or isinstance(value, MethodType):
                vars(part)[key] = _of_copy(value, memo)
    for parameter in module.parameters():
        if (own := memo.get(id(parameter))) is not None:  # a __deepcopy__ of a user need not pass the memo on
            _carry_hooks(parameter, own, memo)
    return made


def copied(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A deep copy whose floating-point tensors, of any shape, are cast to this type while they are copied.

    Raises ConfigError where an attribute cannot be copied.
    """
    memo: Memo = {
        id(tensor): _cast(tensor, dtype)
        for tensor in (*module.parameters(), *module.buffers())
        if type(tensor) in (nn.Parameter, Tensor) and tensor.is_leaf
    }
    return tensors.cast_module(copied_module(module, memo, partial(tensors.cast, dtype=dtype)), dtype)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    new: Tensor = tensors.cast(tensor.detach(), dtype)
    if new.data_ptr() == tensor.data_ptr():
        new = new.clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new.requires_grad_(tensor.requires_grad)


def check_copyable(module: nn.Module) -> None:
    """Raises what ``copied_module`` would raise; makes no copies of parameters and buffers."""
    kept = (*module.parameters(), *module.buffers())
    _deep_copy(module, {id(each): each for each in kept}, lambda tensor: tensor)


def _deep_copy(module: nn.Module, memo: Memo, change: Callable[[Tensor], Tensor]) -> nn.Module:
    given = dict(memo)
    try:
        with TensorCopies(change, computed=True):
            return copy.deepcopy(module, memo)
    except Exception as error:  # of any kind: of a user's class
        if lazy := [name for name, buffer in module.named_buffers() if is_lazy(buffer)]:
            raise ConfigError(
                f"{listed(lazy)} of the model have no shapes before its first forward, and cannot be copied: "
                "call the model once on some rows"
            ) from error
        raise ConfigError(
            f"{type(module).__name__} cannot be copied ({describe(error)}){_culprit(module, given)}. Give "
            "its class a method __deepcopy__ or __getstate__ that leaves it out, or make it where it is used"
        ) from error


def _culprit(module: nn.Module, memo: Memo) -> str:
    """Which attribute cannot be copied; empty where each can."""
    memo = memo | {id(each): each for each in (*module.modules(), *module.parameters(), *module.buffers())}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            try:
                with TensorCopies(torch.clone, computed=True):
                    copy.deepcopy(value, dict(memo))
            except Exception:  # of any kind: of a user's class
                return f": attribute '{key}' of {name or 'the model'} holds a {type(value).__name__}"
    return ""


def _calls(value: Any) -> bool:
    return isinstance(value, FunctionType | partial)


def _of_copy(value: Any, memo: Memo) -> Any:
    """The value of the copy for one of the original: a function has the copy's parts in its closure."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, MethodType):
        return MethodType(_of_copy(value.__func__, memo), _of_copy(value.__self__, memo))
    if isinstance(value, partial):
        keywords = {key: _of_copy(each, memo) for key, each in value.keywords.items()}
        return partial(_of_copy(value.func, memo), *(_of_copy(each, memo) for each in value.args), **keywords)
    if not isinstance(value, FunctionType):
        return value
    memo[id(value)] = value  # its closure may have itself
    cells, defaults = value.__closure__ or (), value.__defaults__ or ()
    own = [_cell(cell, memo) for cell in cells], [_of_copy(each, memo) for each in defaults]
    if all(a is b for a, b in zip((*cells, *defaults), (*own[0], *own[1]), strict=True)):
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, tuple(own[1]), tuple(own[0]))
    made.__kwdefaults__ = value.__kwdefaults__
    vars(made).update(vars(value))
    memo[id(value)] = made
    return made


def _cell(cell: CellType, memo: Memo) -> CellType:
    """A cell with the copy's value; the same one, which functions share, where that is the original's."""
    try:
        content = cell.cell_contents
    except ValueError:  # it has none yet
        return cell
    own = _of_copy(content, memo)
    return cell if own is content else CellType(own)


def _carry_hooks(original: Tensor, copied: Tensor, memo: Memo) -> None:
    """Register the hooks of a parameter on its copy; a bound method becomes that of the copied module."""
    if copied is original or not copied.requires_grad:
        return
    for kind, register in HOOKS.items():
        for hook in (getattr(original, kind) or {}).values():
            own = _of_copy(hook, memo) if _calls(hook) else copy.deepcopy(hook, memo)
            getattr(copied, register)(own)

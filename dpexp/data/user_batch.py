"""User batch: the inputs and targets in a batch of any form that a user's data gives.

(input, target)           where the input is a tuple or list, its items are the model's positional arguments,
                          unless it is one argument: a packed sequence, a list with an entry for each row, or
                          more items than the forward takes
{"x": ..., "label": ...}  model(**batch), which gets the target, too, if its forward has such an argument
input                     a tensor, or a dataclass of tensors, without a target
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch, rows_of

TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a dict under which the target is looked for."""
_FORMS = (
    "it must be a pair (input, target), where several inputs are a tuple, a dict of arguments of the model, "
    "or a tensor or a dataclass of tensors, with the rows in dimension 0"
)


def as_batch(
    values: Any, forward: inspect.Signature | None = None, what: str = "--data", has_own_loss: bool = False
) -> Batch:
    """The global batch. Its rows are those of its first value with rows, the targets before the inputs.

    ``has_own_loss``: a forward whose next argument is the target by its name gets that of a pair, too.
    Raises ConfigError, which begins with ``what``: for another form, for a dict that the model's forward
    does not take, and for sparse and nested tensors.
    """
    targets: Any = None
    if isinstance(values, Mapping):
        inputs, targets = _of_mapping(values, forward, what)
    elif isinstance(values, PackedSequence) or not isinstance(values, list | tuple):
        inputs = (values,)
    else:
        first, targets = (*values, None)[:2] if len(values) in (1, 2) else ((), None)
        inputs = (first,) if _is_one_argument(first, targets, forward) else tuple(first)
        if has_own_loss and targets is not None and _takes_target(forward, len(inputs)):
            inputs = (*inputs, targets)
    for each in tensors.walk((targets, inputs)):
        if each.is_nested or each.layout != torch.strided:
            kind = "nested" if each.is_nested else "sparse"
            raise ConfigError(
                f"{what}: a batch has a {kind} tensor, whose rows cannot be taken: give a dense one (padded, "
                f"or to_dense()), and make the {kind} one in the forward"
            )
    rows = _rows((targets, *inputs))
    if rows == 0:
        raise ConfigError(f"{what}: a batch has no rows")
    if rows is None:
        count = f" of {len(values)}" if isinstance(values, list | tuple) else ""
        raise ConfigError(f"{what}: a batch is a {type(values).__name__}{count}; {_FORMS}")
    return Batch(inputs, targets, rows, rows)


def _rows(values: tuple[Any, ...]) -> int | None:
    """The rows of the first tensor that has some; those in lists count last, and may be of one row each."""
    lists = [value for value in values if isinstance(value, list | tuple)]
    others = [value for value in values if not isinstance(value, list | tuple)]
    known = [len(each) for each in tensors.walk(others) if each.dim()] or [*filter(None, map(rows_of, lists))]
    return next(iter(known or (len(each) for each in tensors.walk(lists) if each.dim())), None)


def _is_one_argument(value: Any, targets: Any, forward: inspect.Signature | None) -> bool:
    if not isinstance(value, list | tuple) or isinstance(value, PackedSequence):
        return True
    rows, first = _rows((targets,)), next(tensors.walk(value), None)
    if rows and rows_of(value, rows) and first is not None and first.shape[:1] != (rows,):
        return True  # an entry for each row
    return not _takes(forward, len(value)) and _takes(forward, 1)


def _takes(forward: inspect.Signature | None, count: int) -> bool:
    """Whether a forward takes so many positional arguments; one that is not known does."""
    try:
        if forward is not None:
            forward.bind(*range(count))
    except TypeError:
        return False
    return True


def _takes_target(forward: inspect.Signature | None, position: int) -> bool:
    """Whether the positional argument there is the target, by its name; ``y`` may be another input."""
    parameters = [*forward.parameters.values()][position : position + 1] if forward is not None else []
    return any(
        parameter.name in TARGETS[:-1] and parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    )


def forward_signature(model: nn.Module) -> inspect.Signature | None:
    """The signature of the model's forward; None where Python does not know it."""
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a built-in function
        return None


def _of_mapping(
    values: Mapping[str, Any], forward: inspect.Signature | None, what: str
) -> tuple[tuple[Any, ...], Any]:
    key = next((name for name in TARGETS if name in values), None)
    target = values[key] if key else None
    takes_target = forward is not None and key in forward.parameters
    inputs = {name: value for name, value in values.items() if name != key or takes_target}
    if forward is None:
        return tuple(inputs.values()), target
    try:
        bound = forward.bind(**inputs)
    except TypeError as error:
        raise ConfigError(
            f"{what}: a batch has {', '.join(values)}, and the model's forward takes "
            f"{', '.join(forward.parameters)}: {error}. The target is looked for as {', '.join(TARGETS)}"
        ) from error
    bound.apply_defaults()
    if by_name := bound.kwargs.keys() & inputs.keys():
        raise ConfigError(
            f"{what}: the model's forward takes {', '.join(sorted(by_name))} by name only; "
            "dpexp gives inputs by position"
        )
    return bound.args, target

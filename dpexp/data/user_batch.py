"""User batch: the inputs and targets in a batch of any form that a user's data gives.

(input, target)           where the input is a tuple, its items are the model's positional arguments
{"x": ..., "label": ...}  model(**batch), which gets the target, too, if its forward has such an argument
input                     a tensor without a target
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch

TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a dict under which the target is looked for."""
_FORMS = (
    "it must be a pair (input, target), where several inputs are a tuple, a dict of arguments of the model, "
    "or a tensor, with the rows in dimension 0"
)


def as_batch(values: Any, forward: inspect.Signature | None = None, what: str = "--data") -> Batch:
    """The global batch. Its rows are those of its first tensor with rows, the targets before the inputs.

    Raises ConfigError, which begins with ``what``: for another form, and for a dict that the model's forward
    does not take.
    """
    targets: Any = None
    if isinstance(values, Mapping):
        inputs, targets = _of_mapping(values, forward, what)
    elif isinstance(values, list | tuple) and len(values) in (1, 2):
        first, targets = (*values, None)[:2]
        inputs = tuple(first) if isinstance(first, list | tuple) else (first,)
    else:
        inputs = (values,) if isinstance(values, Tensor) else ()
    with_rows = (each for each in tensors.walk((targets, inputs)) if each.dim())
    first_tensor = next(with_rows, None)
    if first_tensor is None:
        count = f" of {len(values)}" if isinstance(values, list | tuple) else ""
        raise ConfigError(f"{what}: a batch is a {type(values).__name__}{count}; {_FORMS}")
    return Batch(inputs, targets, len(first_tensor), len(first_tensor))


def forward_signature(model: nn.Module) -> inspect.Signature | None:
    """The signature of the model's forward; None where Python does not know it."""
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a built-in function
        return None


def _of_mapping(
    values: Mapping[str, Any], forward: inspect.Signature | None, what: str
) -> tuple[tuple[Any, ...], Any]:
    """The positional arguments of ``model(**batch)``, and the target or None."""
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

"""User batch: the inputs and targets in a batch of any form that a user's data gives.

(input, target)           where the input is a tuple, its items are the model's positional arguments
{"x": ..., "label": ...}  the target, and for each argument of the forward of that name its value, the
                          target's too: model(**batch)
input                     a tensor without a target
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dpexp import tensors
from dpexp.config.errors import ConfigError, available
from dpexp.data.batch import Batch

TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a dict under which the target is looked for."""
_FORMS = (
    "it must be a pair (input, target), where several inputs are a tuple, a dict of arguments of the model, "
    "or a tensor, with the rows in dimension 0"
)


def as_batch(values: Any, forward: inspect.Signature | None = None, what: str = "--data") -> Batch:
    """The global batch. Its rows are those of its first tensor with rows, the targets before the inputs.

    Raises ConfigError, which begins with ``what``: for another form, and for a dict with a key that is
    neither an argument of the model nor a target.
    """
    targets: Any = None
    if isinstance(values, Mapping):
        inputs, targets = _of_mapping(values, forward, what)
    elif isinstance(values, list | tuple) and len(values) in (1, 2):
        first, targets = (*values, None)[:2]
        inputs = tuple(first) if isinstance(first, list | tuple) else (first,)
    else:
        inputs = (values,) if isinstance(values, Tensor) else ()
    with_rows = (each for each in tensors.walk((targets, inputs)) if each.dim() and not each.is_nested)
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
    """The positional arguments up to the last one that has a value, and the target or None.

    A single input may have any name. A forward with one argument may take the dict of all inputs.
    """
    key = next((name for name in TARGETS if name in values), None)
    inputs, target = dict(values), values[key] if key else None
    inputs.pop(key or "", None)
    if not inputs:
        raise ConfigError(f"{what}: a batch has {key or 'nothing'} alone, the target, and no input")
    parameters = [] if forward is None else forward.parameters.values()
    known = {each.name: each.default for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD}
    if not known:
        return tuple(inputs.values()), target
    if not known.keys() & inputs.keys():
        if len(inputs) == 1:
            inputs = {next(iter(known)): next(iter(inputs.values()))}
        elif len(known) == 1:
            return (inputs,), target
    if key in known:  # of a forward that computes its loss
        inputs[key] = target
    for name in (name for name in inputs if name not in known):
        raise ConfigError(
            f"{what}: a batch has '{name}', which is not an argument of the model's forward; "
            f"{available(known)}. The target is looked for as {', '.join(TARGETS)}"
        )
    last = max([*known].index(name) for name in inputs)
    used = dict([*known.items()][: last + 1]) | inputs
    missing = ", ".join(name for name, value in used.items() if value is inspect.Parameter.empty)
    if missing:
        raise ConfigError(f"{what}: the model's forward needs {missing}, and a batch has {', '.join(inputs)}")
    return tuple(used.values()), target

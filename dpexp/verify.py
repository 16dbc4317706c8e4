"""Verify: does the layout compute the same as a single device? And digests of what was computed.

A strategy is proven on one global batch, in float64: outputs, and the gradient of every parameter,
against the same weights on one device. Float64 separates rounding (about 1e-16) from wrong semantics
(1e-3 and more), which float32 does not. Errors are relative norms over all tensors together,
``||a - b|| / ||b||``.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dpexp import devices, nested
from dpexp.config import ConfigError
from dpexp.data import Batch, Dataset
from dpexp.distributed.group import Alone
from dpexp.record import Row
from dpexp.strategies.base import Placed, Strategy
from dpexp.strategies.wrapping import named_parameters
from dpexp.timing import Timer

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that still counts as rounding, by the dtype that the comparison ran in."""


class VerificationError(RuntimeError):
    """The layout does not compute what a single device computes."""


@dataclass(frozen=True)
class Verification:
    """The ``verification`` of a Record; errors are None where there was nothing to compare."""

    checked: bool
    dtype: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    passed: bool | None = None
    note: str = ""

    def to_dict(self) -> Row:
        return asdict(self)


NOT_CHECKED = Verification(checked=False, note="not verified: --no-check")


@dataclass(frozen=True)
class Result:
    """Outputs, and gradients by parameter name, of one batch."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]


def verify(
    model: nn.Module,
    strategy: Strategy,
    used: Sequence[torch.device],
    data: Dataset,
    batch: Batch,
    *,
    train: bool,
    ranks: Alone | None = None,
) -> Verification:
    """Compare the strategy with a single device on one global batch; neither model nor data is changed."""
    dtype = torch.float32 if any(device.type == "mps" for device in used) else torch.float64
    data, batch = data.to(dtype), Batch(*nested.cast((batch.inputs, batch.targets), dtype), batch.rows)
    reference = copy.deepcopy(model).to(dtype)
    note = settle(reference)
    candidate = copy.deepcopy(reference)
    single = Placed(reference, devices.HOST, devices.HOST, (devices.HOST,))
    expected = compute(single, data, batch, train=train)
    ranks = ranks or Alone()
    found = compute(strategy.place(candidate, used, Timer()), data, batch.part(ranks.rows), train=train)
    found = Result(joined(ranks.gather(found.outputs)), found.gradients)
    tolerance = TOLERANCE[dtype]
    output_error = relative_error(found.outputs, expected.outputs)
    names = sorted(expected.gradients.keys() | found.gradients.keys())
    gradient_error = None
    if names:
        gradient_error = relative_error(
            *(_complete(each.gradients, names, (expected, found)) for each in (found, expected))
        )
    passed = all(error is None or error <= tolerance for error in (output_error, gradient_error))
    return Verification(
        True, str(dtype).removeprefix("torch."), output_error, gradient_error, tolerance, passed, note
    )


def _complete(
    gradients: Mapping[str, torch.Tensor], names: Iterable[str], both: Sequence[Result]
) -> list[torch.Tensor]:
    """The gradients in order of name, zeros where a parameter got none."""
    shaped = both[0].gradients | both[1].gradients
    return [gradients[name] if name in gradients else torch.zeros_like(shaped[name]) for name in names]


def compute(placed: Placed, data: Dataset, batch: Batch, *, train: bool) -> Result:
    """Forward, and backward if ``train``, of one batch on a placed model; tensors come on the host."""
    inputs = devices.move(batch.inputs, placed.input_device)
    if not train:
        placed.module.eval()
    with torch.set_grad_enabled(train):
        outputs = placed.module(*inputs)
        if train:
            loss = data.loss(outputs, devices.move(batch.targets, placed.output_device))
            if loss.requires_grad:
                placed.turn.backward(loss, batch)
    gradients = {
        name: placed.turn.whole(name, parameter.grad).to(devices.HOST).to_dense()
        for name, parameter in named_parameters(placed.module).items()
        if parameter.grad is not None
    }
    outputs = nested.tensors(outputs) if batch.rows else ()  # a stand-in's are nobody's
    return Result([each.detach().to(devices.HOST) for each in outputs], gradients)


def joined(by_rank: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The ranks' outputs, which hold some rows each, as those of the global batch."""
    there = [outputs for outputs in by_rank if outputs]
    if len(there) < 2:
        return there[0] if there else []
    return [torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*there, strict=True)]


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """``||found - expected|| / ||expected||`` over all tensors together; infinite where shapes differ."""
    if [each.shape for each in found] != [each.shape for each in expected]:
        return math.inf
    difference = math.hypot(
        *(torch.linalg.vector_norm((a - b).flatten()).item() for a, b in zip(found, expected, strict=True))
    )
    norm = math.hypot(*(torch.linalg.vector_norm(each.flatten()).item() for each in expected))
    return difference / norm if norm > 0 else difference


def settle(model: nn.Module) -> str:
    """Put what computes differently by shard in training into eval mode; returns the note that says so.

    BatchNorm normalizes with its own shard's statistics and dropout draws its own shard's masks, on
    real devices as here: neither equals a single device, and neither is wrong.
    """
    normed = [name for name, part in model.named_modules() if isinstance(part, _BatchNorm)]
    dropped = [name for name, part in model.named_modules() if _draws(part)]
    for name in normed + dropped:
        part = model.get_submodule(name)
        part.eval()
        if isinstance(part, nn.RNNBase):
            part.dropout = 0.0
            part.train()
    told = [
        f"{kind} in eval mode ({', '.join(names)})"
        for kind, names in (("BatchNorm", normed), ("dropout", dropped))
        if names
    ]
    return "; ".join(told)


def _draws(part: nn.Module) -> bool:
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention):
        return part.dropout > 0
    return isinstance(part, _DropoutNd) and part.p > 0


# --- what the model and the data do not agree on --------------------------------------------------


class MisfitError(ConfigError):
    """The model cannot take the data: the module where it broke, and the shapes that it was given."""


@contextmanager
def naming_the_module(model: nn.Module) -> Iterator[None]:
    """An exception inside the model's forward becomes MisfitError, which names the innermost module."""
    stack: list[tuple[str, nn.Module, list[torch.Tensor]]] = []
    handles = []
    for name, part in model.named_modules():

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name) -> None:
            stack.append((name, module, list(nested.tensors((args, kwargs)))))

        def leave(module: nn.Module, args: Any, outputs: Any) -> None:
            stack.pop()

        handles += [
            part.register_forward_pre_hook(enter, with_kwargs=True),
            part.register_forward_hook(leave),
        ]
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if not stack:
            raise
        raise MisfitError(_misfit(*stack[-1], error)) from error
    finally:
        for handle in handles:
            handle.remove()


def _misfit(name: str, module: nn.Module, given: list[torch.Tensor], error: Exception) -> str:
    where = f"module '{name}'" if name else "the model"
    inside = "" if any(True for _ in module.children()) else f" ({module})"
    shown = [f"{tuple(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in given]
    cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and given and given[0].numel():
        low, high = int(given[0].min()), int(given[0].max())
        if low < 0 or high >= module.num_embeddings:
            rows = module.num_embeddings
            cause = f"id {low if low < 0 else high} is beyond the table of {rows} rows (ids 0 to {rows - 1})"
    return f"the model does not fit the data: {where}{inside} got {', '.join(shown) or 'no tensor'}: {cause}"


# --- digests ---------------------------------------------------------------------------------------


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes: equal only for bitwise equal tensors."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().to(devices.HOST).contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()

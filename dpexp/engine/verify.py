"""Verify: whether a layout computes what a single device computes.

It compares outputs, and the gradient of every parameter, of one global batch in float64, which separates
rounding (about 1e-16) from wrong semantics (1e-3 and more); float32 does not. Errors are relative norms over
all tensors together, ``||a - b|| / ||b||``.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import get_total_norm

from dpexp import devices, tensors
from dpexp.config import RunConfig
from dpexp.data.dataset import Batch
from dpexp.engine.prepare import Prepared
from dpexp.parallel.rng_order import is_random_layer
from dpexp.record import Row
from dpexp.strategies.base import Placed, Strategy
from dpexp.strategies.wrappers import named_parameters
from dpexp.timing import Timer

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that counts as rounding, by the dtype of the comparison."""


class VerificationError(RuntimeError):
    """The layout does not compute what a single device computes."""


@dataclass(frozen=True)
class Verification:
    """The ``verification`` of a Record; errors are None if there was nothing to compare."""

    checked: bool
    dtype: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    passed: bool | None = None
    note: str = ""
    rounding: Row | None = None


@dataclass(frozen=True)
class BatchResult:
    """Outputs, and gradients by parameter name, of one batch."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]


def verify(prepared: Prepared) -> Verification:
    """Compare the strategy with a single device on the first global batch; the model is not changed.

    A run in a short type, under autocast or compiled is also compared as it computes: its error against
    float64 may be twice that of a single device.
    """
    has_mps = any(device.type == "mps" for device in prepared.selection.used)  # which has no float64
    dtype = torch.float32 if has_mps else torch.float64
    plain = prepared.strategy.configured(replace(prepared.config, autocast="", compile=False))
    computation, random_state = Computation(prepared, next(prepared.batches(0))), torch.get_rng_state()
    expected = computation.on_single_device(dtype, plain.config)
    if not torch.equal(random_state, torch.get_rng_state()):
        torch.set_rng_state(random_state)
        computation = replace(computation, eval_only=True)
        expected = computation.on_single_device(dtype, plain.config)
    found = computation.on_layout(plain, dtype)
    output_error, gradient_error = errors(found, expected)
    tolerance = TOLERANCE[dtype]
    rounding = _rounding(computation, prepared.strategy, expected)
    passed = rounding is None or bool(rounding["passed"])
    passed = passed and all(error is None or error <= tolerance for error in (output_error, gradient_error))
    notes = [set_comparable_mode(copy.deepcopy(prepared.model), computation.eval_only), prepared.note]
    found_shapes, expected_shapes = _shapes(found.outputs), _shapes(expected.outputs)
    if found_shapes != expected_shapes:
        notes.insert(0, f"outputs {found_shapes} instead of {expected_shapes}")
    note = "; ".join(filter(None, notes))
    name = str(dtype).removeprefix("torch.")
    return Verification(True, name, output_error, gradient_error, tolerance, passed, note, rounding)


@dataclass(frozen=True)
class Computation:
    """One global batch through a copy of the model, in any layout and type.

    ``eval_only`` puts the full model into eval mode, because it draws random numbers outside of known layers.
    """

    prepared: Prepared
    batch: Batch
    eval_only: bool = False

    def on_single_device(self, dtype: torch.dtype, config: RunConfig) -> BatchResult:
        """The reference: the model on the host."""
        placed = Placed(self._copy(dtype), devices.HOST, devices.HOST, (devices.HOST,))
        return self._compute(placed, self.batch, dtype, config)

    def on_layout(self, strategy: Strategy, dtype: torch.dtype) -> BatchResult:
        """The strategy's result, with the outputs of all ranks."""
        placed = strategy.place(self._copy(dtype), self.prepared.selection.used, Timer())
        group = strategy.group
        result = self._compute(placed, self.batch.part(group.rows), dtype, strategy.config)
        outputs_by_rank = [outputs for outputs in group.all_gather(result.outputs) if outputs]
        if len(outputs_by_rank) < 2:
            return BatchResult(outputs_by_rank[0] if outputs_by_rank else [], result.gradients)
        by_output = zip(*outputs_by_rank, strict=True)
        outputs = [torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in by_output]
        return BatchResult(outputs, result.gradients)

    def _copy(self, dtype: torch.dtype) -> nn.Module:
        model = tensors.cast_module(copy.deepcopy(self.prepared.model), dtype)
        set_comparable_mode(model, self.eval_only)
        return model

    def _compute(self, placed: Placed, batch: Batch, dtype: torch.dtype, config: RunConfig) -> BatchResult:
        inputs, targets = tensors.cast((batch.inputs, batch.targets), dtype)
        if config.eval:
            placed.module.eval()
        with torch.set_grad_enabled(not config.eval):
            with devices.autocast(placed.output_device, config.autocast):
                outputs = placed.module(*devices.move(inputs, placed.input_device))
            if not config.eval:
                loss = self.prepared.data.loss(outputs, devices.move(targets, placed.output_device))
                if loss.requires_grad:
                    placed.gradient_sync.backward(loss, batch)
        gradients = {
            name: _in_float64(placed.gradient_sync.full_tensor(name, parameter.grad).to_dense())
            for name, parameter in named_parameters(placed.module).items()
            if parameter.grad is not None
        }
        computed = tensors.walk(outputs) if batch.rows else ()  # without rows they are a stand-in's
        return BatchResult([_in_float64(tensor) for tensor in computed], gradients)


def _shapes(outputs: Sequence[torch.Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in outputs)


def _in_float64(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().to(devices.HOST)
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def errors(found: BatchResult, expected: BatchResult) -> tuple[float, float | None]:
    """Relative errors of outputs and of gradients (None without any); a missing gradient counts as zeros."""
    output_error = relative_error(found.outputs, expected.outputs)
    names = sorted(expected.gradients.keys() | found.gradients.keys())
    if not names:
        return output_error, None
    zeros = {name: torch.zeros_like(grad) for name, grad in (expected.gradients | found.gradients).items()}
    complete = ([result.gradients.get(name, zeros[name]) for name in names] for result in (found, expected))
    return output_error, relative_error(*complete)


def _rounding(computation: Computation, strategy: Strategy, exact: BatchResult) -> Row | None:
    """Errors of a short type, autocast or compiled run against float64, beside those of a single device."""
    config = strategy.config
    dtype: torch.dtype = getattr(torch, config.dtype)
    if dtype in TOLERANCE and not config.autocast and not config.compile:
        return None
    layout = errors(computation.on_layout(strategy, dtype), exact)
    single = errors(computation.on_single_device(dtype, replace(config, compile=False)), exact)
    least = torch.finfo(torch.float32).eps
    passed = all(
        error is None or (reference is not None and error <= 2 * reference + least)
        for error, reference in zip(layout, single, strict=True)
    )
    computed = {"dtype": config.dtype, "autocast": config.autocast, "compile": config.compile}
    return computed | {
        "output_error": layout[0],
        "gradient_error": layout[1],
        "single_output_error": single[0],
        "single_gradient_error": single[1],
        "passed": passed,
    }


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """``||found - expected|| / ||expected||`` over all tensors together; infinite where shapes differ."""
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
        return math.inf
    difference = get_total_norm([a - b for a, b in zip(found, expected, strict=True)]).item()
    norm = get_total_norm(expected).item()
    return difference / norm if norm > 0 else difference


def set_comparable_mode(model: nn.Module, eval_only: bool = False) -> str:
    """Put modules that compute differently by shard in training into eval mode; returns a note about them.

    BatchNorm normalizes with the statistics of its shard and dropout draws the masks of its shard, on real
    devices as on virtual ones: neither equals a single device, and neither is wrong. ``eval_only`` puts the
    full model into eval mode, because a forward may call dropout as a function.
    """
    changed: dict[str, list[str]] = {"BatchNorm": [], "dropout": []}
    if eval_only:
        model.eval()
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm):
            changed["BatchNorm"].append(name or "the model")
            part.eval()
        if is_random_layer(part):
            changed["dropout"].append(name or "the model")
            part.training = False  # only its own: a block may have its probability beside other layers
        if isinstance(part, nn.RNNBase):  # cuDNN has no backward in eval mode
            part.dropout = 0.0
            part.train()
    if eval_only:
        return "the whole model in eval mode: it draws random numbers outside of dropout modules"
    return "; ".join(f"{kind} in eval mode ({', '.join(names)})" for kind, names in changed.items() if names)

"""Verify: does the layout compute the same as a single device?

A strategy is proven on one global batch, in float64: outputs, and the gradient of every parameter,
against the same weights on one device. Float64 separates rounding (about 1e-16) from wrong semantics
(1e-3 and more), which float32 does not. Errors are relative norms over all tensors together,
``||a - b|| / ||b||``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import devices, tensors
from dpexp.config import ConfigError, RunConfig
from dpexp.config.user_errors import describe
from dpexp.data.dataset import Batch, Dataset
from dpexp.parallel.rng_order import is_random_layer
from dpexp.record import Row
from dpexp.strategies.base import Placed, Strategy
from dpexp.strategies.wrappers import named_parameters
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
    rounding: Row | None = None

    def to_dict(self) -> Row:
        return asdict(self)


NOT_CHECKED = Verification(checked=False, note="not verified: --no-check")


@dataclass(frozen=True)
class Result:
    """Outputs, and gradients by parameter name, of one batch."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]


def verify(
    model: nn.Module, strategy: Strategy, used: Sequence[torch.device], data: Dataset, batch: Batch
) -> Verification:
    """Compare the strategy with a single device on one global batch; the model is not changed.

    A run that computes in another way than plain float32 or float64 (a short type, autocast, compiled) is
    compared in that way as well: its error against float64 may be twice that of a single device.
    """
    dtype = torch.float32 if any(device.type == "mps" for device in used) else torch.float64
    plain = strategy.configured(replace(strategy.config, autocast="", compile=False))
    case = Case(model, data, batch)
    random = torch.get_rng_state()
    expected = case.on_single_device(dtype, plain.config)
    if not torch.equal(random, torch.get_rng_state()):
        torch.set_rng_state(random)
        case = replace(case, still=True)
        expected = case.on_single_device(dtype, plain.config)
    found = case.laid_out(plain, used, dtype)
    output_error, gradient_error = errors(found, expected)
    tolerance = TOLERANCE[dtype]
    passed = all(error is None or error <= tolerance for error in (output_error, gradient_error))
    rounding = _rounding(case, strategy, used, expected)
    if rounding is not None:
        passed = passed and bool(rounding["passed"])
    name = str(dtype).removeprefix("torch.")
    note = "; ".join(filter(None, (_other_shapes(found, expected), case.note())))
    return Verification(True, name, output_error, gradient_error, tolerance, passed, note, rounding)


@dataclass(frozen=True)
class Case:
    """One global batch through one model, in any layout and type; each time on a copy of the model.

    ``still``: the whole model is in eval mode, because it draws random numbers in places unknown.
    """

    model: nn.Module
    data: Dataset
    batch: Batch
    still: bool = False

    def on_single_device(self, dtype: torch.dtype, config: RunConfig) -> Result:
        """What the host alone computes."""
        reference = tensors.cast_module(copy.deepcopy(self.model), dtype)
        settle(reference, self.still)
        single = Placed(reference, devices.HOST, devices.HOST, (devices.HOST,))
        return self._compute(single, dtype, config)

    def laid_out(self, strategy: Strategy, used: Sequence[torch.device], dtype: torch.dtype) -> Result:
        """What the layout computes."""
        candidate = tensors.cast_module(copy.deepcopy(self.model), dtype)
        settle(candidate, self.still)
        group = strategy.group
        part = replace(self, batch=self.batch.part(group.rows))
        found = part._compute(strategy.place(candidate, used, Timer()), dtype, strategy.config)
        return Result(joined(group.all_gather(found.outputs)), found.gradients)

    def note(self) -> str:
        """What is compared in eval mode, and so not as it trains."""
        return settle(copy.deepcopy(self.model), self.still)

    def _compute(self, placed: Placed, dtype: torch.dtype, config: RunConfig) -> Result:
        inputs, targets = tensors.cast((self.batch.inputs, self.batch.targets), dtype)
        if config.eval:
            placed.module.eval()
        with torch.set_grad_enabled(not config.eval):
            with devices.autocast(placed.output_device, config.autocast):
                outputs = placed.module(*devices.move(inputs, placed.input_device))
            if not config.eval:
                loss = self.data.loss(outputs, devices.move(targets, placed.output_device))
                if loss.requires_grad:
                    placed.gradient_sync.backward(loss, self.batch)
        gradients = {
            name: _exact(placed.gradient_sync.full_tensor(name, parameter.grad).to_dense())
            for name, parameter in named_parameters(placed.module).items()
            if parameter.grad is not None
        }
        own = tensors.walk(outputs) if self.batch.rows else ()  # a stand-in's outputs are nobody's
        return Result([_exact(each) for each in own], gradients)


def joined(by_rank: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The ranks' outputs, which hold some rows each, as those of the global batch."""
    there = [outputs for outputs in by_rank if outputs]
    if len(there) < 2:
        return there[0] if there else []
    return [torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*there, strict=True)]


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().to(devices.HOST)
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def errors(found: Result, expected: Result) -> tuple[float, float | None]:
    """Relative errors of outputs and of gradients (None without any)."""
    names = sorted(expected.gradients.keys() | found.gradients.keys())
    if not names:
        return relative_error(found.outputs, expected.outputs), None
    both = (_complete(each.gradients, names, (expected, found)) for each in (found, expected))
    return relative_error(found.outputs, expected.outputs), relative_error(*both)


def _other_shapes(found: Result, expected: Result) -> str:
    """``outputs (2,) instead of ()``; empty where the shapes are the same."""
    told = [", ".join(str(tuple(each.shape)) for each in result.outputs) for result in (found, expected)]
    return "" if told[0] == told[1] else f"outputs {told[0]} instead of {told[1]}"


def _rounding(case: Case, strategy: Strategy, used: Sequence[torch.device], exact: Result) -> Row | None:
    """The errors of a run's own way of computing against float64, beside those of a single device."""
    config = strategy.config
    dtype: torch.dtype = getattr(torch, config.dtype)
    if dtype in TOLERANCE and not config.autocast and not config.compile:
        return None
    own = errors(case.laid_out(strategy, used, dtype), exact)
    single = errors(case.on_single_device(dtype, replace(config, compile=False)), exact)
    least = torch.finfo(torch.float32).eps
    passed = all(
        a is None or (b is not None and a <= 2 * b + least) for a, b in zip(own, single, strict=True)
    )
    return {
        "dtype": config.dtype,
        "autocast": config.autocast,
        "compile": config.compile,
        "output_error": own[0],
        "gradient_error": own[1],
        "single_output_error": single[0],
        "single_gradient_error": single[1],
        "passed": passed,
    }


def _complete(
    gradients: Mapping[str, torch.Tensor], names: Iterable[str], both: Sequence[Result]
) -> list[torch.Tensor]:
    """The gradients in order of name, zeros where a parameter got none."""
    shaped = both[0].gradients | both[1].gradients
    return [gradients[name] if name in gradients else torch.zeros_like(shaped[name]) for name in names]


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """``||found - expected|| / ||expected||`` over all tensors together; infinite where shapes differ."""
    if [each.shape for each in found] != [each.shape for each in expected]:
        return math.inf
    difference = math.hypot(
        *(torch.linalg.vector_norm((a - b).flatten()).item() for a, b in zip(found, expected, strict=True))
    )
    norm = math.hypot(*(torch.linalg.vector_norm(each.flatten()).item() for each in expected))
    return difference / norm if norm > 0 else difference


def settle(model: nn.Module, still: bool = False) -> str:
    """Put what computes differently by shard in training into eval mode; returns the note that says so.

    ``still`` puts the whole model there: dropout may be a function that no module shows.

    BatchNorm normalizes with its own shard's statistics and dropout draws its own shard's masks, on
    real devices as here: neither equals a single device, and neither is wrong.
    """
    normed = [name for name, part in model.named_modules() if isinstance(part, _BatchNorm)]
    dropped = [name for name, part in model.named_modules() if is_random_layer(part)]
    if still:
        model.eval()
    for name in normed:
        model.get_submodule(name).eval()
    for name in dropped:  # without its submodules: a block may keep its probability beside other layers
        model.get_submodule(name).training = False
    for part in model.modules():
        if isinstance(part, nn.RNNBase):  # cuDNN has no backward in eval mode
            part.dropout = 0.0
            part.train()
    if still:
        return "the whole model in eval mode: it draws random numbers outside of dropout modules"
    told = [
        f"{kind} in eval mode ({', '.join(name or 'the model' for name in names)})"
        for kind, names in (("BatchNorm", normed), ("dropout", dropped))
        if names
    ]
    return "; ".join(told)


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
            stack.append((name, module, list(tensors.walk((args, kwargs)))))

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
    cause = describe(error)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and given and given[0].numel():
        low, high = int(given[0].min()), int(given[0].max())
        if low < 0 or high >= module.num_embeddings:
            rows = module.num_embeddings
            cause = f"id {low if low < 0 else high} is beyond the table of {rows} rows (ids 0 to {rows - 1})"
    return f"the model does not fit the data: {where}{inside} got {', '.join(shown) or 'no tensor'}: {cause}"

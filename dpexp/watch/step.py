"""Step: one optimizer step of the loop beside a single device that takes the same calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.data.averages import ROWS, count
from dpexp.strategies.modules import named_parameters
from dpexp.verification.compare import Difference, Kinds, Limits, Noise, noise_of, parts_of
from dpexp.verification.diagnosis.patterns import multiple
from dpexp.verification.rounding import DRAWS, MARGIN, largest
from dpexp.verification.trial import judge, worst_errors
from dpexp.watch import update
from dpexp.watch.calls import LoopCall, full
from dpexp.watch.explain import Case, FoundError, LoopFinding, explain, mean_of_means, sampled
from dpexp.watch.options import Options
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import HAS_STATE, Gradients, Narrowest, Replay
from dpexp.watch.weights import Weighed, Weighing, loss_of_all_rows, scalar_place

Tensors = Mapping[str, torch.Tensor]


def held_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer holds, by their names in the model as written."""
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return {name: each for name, each in named_parameters(model).items() if id(each) in own}


def digests(named: Tensors) -> dict[str, str]:
    """The digest of each tensor, by name."""
    return {name: tensors.digest([each]) for name, each in named.items()}


@dataclass
class LoopStep:
    """The reference of step ``number``, for all its optimizers.

    Every rank must call every method. They raise FoundError for what a single device computes otherwise, and
    NotComparableError. ``warnings`` are not errors; ``residue`` are the gradients that the steps before have
    left.
    """

    number: int
    model: nn.Module
    options: Options
    ranks: LoopRanks
    replay: Replay
    errors: dict[str, Difference]
    calls: Sequence[LoopCall]
    losses: Sequence[LoopCall]
    residue: Tensors
    warnings: dict[str, None]
    weighed: Weighed | None = None
    counted: Sequence[int] = ()
    was_clipped: bool = False
    is_scaled: bool = False
    loss: float = math.nan
    samples: int = 0
    parameters: Tensors = field(default_factory=dict)
    expected: Gradients = field(default_factory=dict)
    clipped: Gradients = field(default_factory=dict)
    of_loop: Gradients = field(default_factory=dict)
    found: Gradients = field(default_factory=dict)
    gradients: Gradients = field(default_factory=dict)
    before: update.Before | None = None
    limits: Limits = field(default_factory=lambda: Limits(0.0))

    def begin(self) -> None:
        """Compare the parameters of ranks, the outputs of each call, and what each call counts.

        Raises NotComparableError where the loop has not called the model.
        """
        for call in (*self.calls, *self.losses):  # every rank takes part, also one that stands for no rows
            call.gather()
        self.parameters = {name: full(each).clone() for name, each in named_parameters(self.model).items()}
        self.ranks.together(lambda: self.replay.load(self.parameters, self.model))
        self._check_alike(self.parameters, "before")
        if not any(self.ranks.all_gather(bool(self.calls))):
            raise NotComparableError(
                "the model was not called, or none of its outputs was differentiated: watch the module that "
                "the loop calls, and let the loss come from its outputs"
            )
        self._count_ranks()
        self._check_outputs()
        if self._has_weights():
            weighing = Weighing(self.options.loss, self.options.weight, self.ranks, self.replay)
            self.weighed = weighing.weigh(self.calls, self.losses, self.counted)
            if self.weighed.apart:
                apart = f"(apart {self.weighed.apart:.1e})"
                what = f"its gradient is not a multiple of that of the loss of all rows {apart}"
                cause = (
                    "an all_reduce or all_gather without a backward, the loop changes the loss before "
                    "backward, or the loss of a row depends on other rows (then state weight=)"
                )
                self._raise("loss", what, cause)
        losses = self.calls if self.options.loss is None else self.losses
        self.loss = loss_of_all_rows(losses, self.weighed, self.ranks, self.counted)
        rows = self.ranks.all_gather(sum(int(count(ROWS, call.inputs)) for call in self.calls))
        self.samples = sum(rows[rank] for rank in set(self.counted))
        self.expected = self._sum()
        self.clipped = self._clip(self.expected)

    def compare_gradients(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Compare what an optimizer is about to step with."""
        scale = getattr(optimizer, "grad_scale", None)  # by which a fused optimizer itself divides
        found = {name: full(each.grad).clone() for name, each in held.items() if each.grad is not None}
        self.gradients = {name: each if scale is None else each / scale for name, each in found.items()}
        self.found = {
            name: each.to_dense() if each.is_sparse else each for name, each in self.gradients.items()
        }
        parameters = {name: self.parameters[name] for name in held}
        if self.before is not None:  # an optimizer that steps after another
            parameters = {name: full(each).clone() for name, each in held.items()}
        self.before = update.Before.of(optimizer, held, parameters)
        own = {name: self.clipped[name] for name in held if name in self.clipped}
        times = 1.0
        if self.weighed is None:  # the scale is the loop's: one for all gradients
            fitted = multiple(self.found, own)
            times = self.ranks.all_gather(1.0 if fitted is None else fitted.factors[0])[0]
        right = {name: each * times for name, each in own.items() if name in self.found or each.any()}
        if not any(bool(each.any()) for each in (*self.found.values(), *right.values())):
            self._warn("no parameter has a gradient other than zero")
        if not all(self.ranks.all_gather(all(bool(each.isfinite().all()) for each in self.found.values()))):
            self._warn("a gradient is not finite")

        def rounded(draw: int) -> dict[str, torch.Tensor]:
            again = self._clip(self._sum(draw))
            return {name: again[name] * times for name in right}

        failed = self._judge("gradients", self.found, right, rounded, self.limits)
        if failed is None and self.weighed is not None:
            self._check_weights(self.weighed, right)
        if failed is None:
            return
        case = Case(
            ranks=self.ranks,
            held=held,
            found=self.found,
            right=right,
            total=self.expected,
            columns=self.ranks.together(
                lambda: [sampled(self.replay.gradients_of(call)) for call in self.calls]
            ),
            counted=self.counted,
            residue=self.residue,
            clip=self.options.clip_norm,
            limit=self.limits.tolerance,
            is_scaled=self.is_scaled,
            weighed=self.weighed,
        )
        what = f"of '{failed.tensor}' differ by {failed.error:.1e}"
        self._raise("gradients", what, explain(case), failed)

    def compare_update(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        """Compare the parameters after the step with those of an equal optimizer."""
        assert self.before is not None
        before = self.before
        after = {name: full(each).clone() for name, each in held.items()}
        narrowest = Narrowest([*after.values(), *self.found.values()])  # Muon computes in bfloat16

        def changes(parameters: Tensors) -> dict[str, torch.Tensor]:
            return {name: each - before.parameters[name] for name, each in parameters.items()}

        def updated(draw: int | None = None) -> dict[str, torch.Tensor]:
            return changes(update.updated(optimizer, held, before, self.gradients, draw))

        try:
            with narrowest:
                expected = self.ranks.together(updated)
        except NotComparableError as why:
            self._warn(f"the update was not compared: {why}")
        else:
            failed = self._judge("updates", changes(after), expected, updated, narrowest.limits)
            if failed is not None:
                what = f"of '{failed.tensor}' differs by {failed.error:.1e}"
                cause = f"an equal {type(optimizer).__name__} makes another update of the same gradients"
                self._raise("update", what, cause, failed)
        self._check_state(optimizer, held)
        self._check_alike(after, "after")

    # --- what is compared ---

    def _check_alike(self, parameters: Tensors, when: str) -> None:
        """Raise FoundError where ranks have other parameters."""
        if self.ranks.size == 1:
            return
        by_rank = self.ranks.all_gather(digests(parameters))
        names = [name for name, bits in by_rank[0].items() if any(each.get(name) != bits for each in by_rank)]
        if names:
            cause = (
                "ranks were not seeded alike, rank 0's were not broadcast, or ranks write to them (max_norm)"
                if when == "before"
                else "ranks had other gradients, or an optimizer of another state"
            )
            self._raise("parameters", f"'{names[0]}' differs between ranks {when} the step", cause)

    def _count_ranks(self) -> None:
        """Ranks that compute the same rows, as in tensor parallelism, count once: the first of them."""
        rows = self.ranks.all_gather(tensors.digest(tensors.walk([call.inputs for call in self.calls])))
        times = Counter(rows)
        is_even = len(set(times.values())) == 1
        self.counted = [rows.index(each) if is_even else rank for rank, each in enumerate(rows)]
        if len(times) < len(rows) and not _splits_layers(self.model):
            self._warn("ranks compute equal rows: is the rank of the sampler set?")

    def _has_weights(self) -> bool:
        """Whether the weights of the loss are compared: it is the user's, or it is inside the model."""
        if self.options.weight is False:
            return False
        inside = all(scalar_place(call) is not None for call in self.calls)
        found = self.options.loss is not None or all(self.ranks.all_gather(inside))
        if not found:
            self._warn("without a loss its weights were not compared: only layout and synchronization")
        return found

    def _check_outputs(self) -> None:
        def outputs(draw: int | None = None) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                of_calls = [self.replay.outputs(call, draw) for call in self.calls]
            return _by_name(of_calls)

        narrowest = Narrowest(self.parameters.values())
        with narrowest:
            expected = self.ranks.together(outputs)
        self.limits = narrowest.limits
        found = _by_name([call.leaves for call in self.calls])
        expected_as = _as(expected, found)
        failed = self._judge(
            "outputs", found, expected_as, lambda draw: _as(outputs(draw), found), self.limits
        )
        if failed is None:
            return
        again = self.ranks.together(outputs)
        if any(
            self.ranks.all_gather(any(not torch.equal(again[name], each) for name, each in expected.items()))
        ):
            raise NotComparableError(HAS_STATE)
        alike = self.ranks.together(lambda: all(map(self.replay.draws_alike, self.calls)))
        if not all(self.ranks.all_gather(alike)):
            raise NotComparableError(
                "the layout draws other random numbers than a single device: watch the loop with dropout off"
            )
        cause = (
            "the layout computes another forward, draws other random numbers, or parameters changed after it"
        )
        self._raise("outputs", f"{failed.tensor} differs by {failed.error:.1e}", cause, failed)

    def _check_weights(self, weighed: Weighed, right: Tensors) -> None:
        """Unequal weights too small to be told from rounding, but known at the loss.

        Which sum are the gradients nearer to: that with the weights of the loss of all rows, or with the
        loop's own?
        """
        factors = weighed.factors
        if not factors or max(factors) - min(factors) < 1e-4 * max(map(abs, factors)):
            return
        mean = sum(factors) / len(factors)
        nearest = (
            math.copysign(2.0 ** round(math.log2(abs(mean))), mean) if mean else 1.0
        )  # it rounds nothing
        if not self.of_loop:
            own = [call.factor for call in self.calls]
            for call in self.calls:
                call.factor = nearest
            self.of_loop = self._sum()
            for call, factor in zip(self.calls, own, strict=True):
                call.factor = factor
        found = {name: each for name, each in self.found.items() if name in right}
        near, of_loop = multiple(found, self.expected), multiple(found, self.of_loop)
        is_loops = near is not None and of_loop is not None and of_loop.left < 0.5 * near.left
        if all(self.ranks.all_gather(is_loops)):
            cause = mean_of_means([each / mean for each in factors], len(set(self.counted)), weighed)
            self._raise("loss", "calls have other weights than in the loss of all rows", cause)

    def _check_state(self, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> None:
        for name, kept in update.state_of(optimizer, held).items():
            for key, each in kept.items():
                is_like = isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim()
                if is_like and torch.finfo(each.dtype).eps > torch.finfo(held[name].dtype).eps:
                    what = f"'{key}' of '{name}' is {each.dtype}, the parameter {held[name].dtype}"
                    self._raise("optimizer", what, "its state was cast, or loaded, in a narrower type")

    # --- how ---

    def _judge(
        self,
        kind: str,
        found: Tensors,
        expected: Tensors,
        rounded: Callable[[int], Tensors],
        limits: Limits,
    ) -> Difference | None:
        """What differs by more than rounding on any rank; ``rounded(draw)`` rounds otherwise."""

        def comparisons() -> Iterator[tuple[Kinds, Noise]]:
            kinds = {kind: parts_of(found, expected)}
            yield kinds, {}
            for draw in range(DRAWS):
                again = rounded(draw) if kind == "gradients" else self.ranks.together(partial(rounded, draw))
                yield kinds, largest([noise_of({kind: parts_of(again, expected)})], MARGIN)

        verdict = judge(self.number, comparisons(), limits, self.ranks)
        self.errors |= worst_errors(self.errors, verdict.errors)
        if verdict.failed is None and (hidden := verdict.hidden) is not None:
            self._warn(f"rounding is too large to compare {hidden.kind} of '{hidden.tensor}'")
        return verdict.failed

    def _sum(self, draw: int | None = None) -> Gradients:
        """The sum over the calls of all ranks that count."""
        counts = self.counted[self.ranks.rank] == self.ranks.rank
        own = self.ranks.together(lambda: self.replay.gradients(self.calls if counts else (), draw))
        return self.ranks.sum(own)

    def _clip(self, gradients: Tensors) -> Gradients:
        """Clipped as the user has said."""
        clip_norm = self.options.clip_norm
        if clip_norm is None:
            return dict(gradients)
        held = [nn.Parameter(torch.empty_like(each)) for each in gradients.values()]
        for each, gradient in zip(held, gradients.values(), strict=True):
            each.grad = gradient.clone()
        if callable(clip_norm):
            clip_norm(held)
        else:
            norm = torch.nn.utils.clip_grad_norm_(held, clip_norm)
            self.was_clipped |= bool(norm > clip_norm)
        clipped = {name: each.grad for name, each in zip(gradients, held, strict=True)}
        return {name: each for name, each in clipped.items() if each is not None}

    def _warn(self, text: str) -> None:
        self.warnings[text] = None

    def _raise(self, kind: str, what: str, cause: str, worst: Difference | None = None) -> None:
        raise FoundError(LoopFinding(self.number, kind, what, cause, worst))


def _by_name(of_calls: Sequence[Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        f"call {number + 1} output {place}": each
        for number, leaves in enumerate(of_calls)
        for place, each in enumerate(leaves)
    }


def _as(expected: Tensors, found: Tensors) -> dict[str, torch.Tensor]:
    return {name: each.to(found[name].dtype) if name in found else each for name, each in expected.items()}


def _splits_layers(model: nn.Module) -> bool:
    """Whether a dimension of a mesh splits layers: its ranks compute the same rows."""
    meshes = (getattr(each, "device_mesh", None) for each in model.parameters())
    return any("tp" in name for mesh in meshes if mesh is not None for name in mesh.mesh_dim_names or ())

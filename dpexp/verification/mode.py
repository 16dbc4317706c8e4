"""Mode: how a model is compared whose outputs depend on the rows beside a row, or on random numbers.

rows together    the single device computes a batch as one. Batch norms whose rows are split and layers that
                 draw random numbers are in eval mode; everything else must not depend on the split
rows in chunks   it computes one chunk of rows after the other in training mode, with the random numbers and
                 the buffers of each: what PyTorch's DataParallel and DistributedDataParallel define
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp.data.rng import random_state
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.random_layers import is_random_layer
from dpexp.strategies.module_calls import running_calls
from dpexp.strategies.modules import parts, wrapped_key
from dpexp.strategies.placed import Placed
from dpexp.training.preserve import uncompiled
from dpexp.verification.chunks import Chunks
from dpexp.verification.recorder import Step

OTHER_NUMBERS = "random layers draw other numbers than on a single device, and are not compared"
ALL_ROWS = "batch norms use the statistics of all rows, and random layers are not compared"


WHOLE_MODEL = "*"
"""Among names of modules: the model with every module in it."""


@dataclass(frozen=True)
class Mode:
    """``quiet`` modules are in eval mode. A single device computes the rows together, or in ``chunks``.

    A ``note`` says what a user's layout does by definition.
    """

    quiet: frozenset[str] = frozenset()
    chunks: Chunks | None = None
    note: str = ""

    @property
    def on_all_rows(self) -> Mode:
        """The same where every rank computes all rows, as in an evaluation."""
        return self if self.chunks is None else replace(self, chunks=replace(self.chunks, dp_size=1))


class Switch:
    """Puts modules of these names into eval mode, and others into the mode in which they were made."""

    def __init__(self, module: nn.Module, layers: frozenset[str] = frozenset()) -> None:
        names = dict[nn.Module, list[str]]()
        for part in parts(module):
            if not wrapped_key(part.module):
                names.setdefault(part.module, []).append(part.name)
        self._parts = [
            (each, part, part.training, getattr(part, "dropout", None)) for part, each in names.items()
        ]
        self._replaced = layers

    def set(self, quiet: frozenset[str]) -> None:
        """What a layout has made of a batch norm or a random layer has its mode as a whole.

        A module that stands in several places has the mode of each: nothing tells its calls apart.
        """
        roots = tuple(f"{name}." for name in quiet & self._replaced)
        for names, module, training, dropout in self._parts:
            is_quiet = not quiet.isdisjoint([WHOLE_MODEL, *names])
            is_quiet |= any(name.startswith(roots) for name in names)
            is_recurrent = isinstance(module, nn.RNNBase)  # cuDNN has no backward in eval mode
            if is_recurrent:
                module.dropout = 0.0 if is_quiet else dropout  # type: ignore[assignment]
            module.training = training and (is_recurrent or not is_quiet)


@dataclass(frozen=True)
class Nature:
    """What of a model depends on the rows beside a row (``batch_norms``), or on random numbers (``drawing``).

    ``has_no_eval_mode``: a batch norm without running statistics uses those of its rows in eval mode, too.
    """

    batch_norms: frozenset[str]
    drawing: frozenset[str]
    has_no_eval_mode: bool = False

    @classmethod
    def of(cls, model: nn.Module, step: Callable[[frozenset[str]], Step]) -> Nature:
        """``step(quiet)`` takes a step with these modules in eval mode.

        Where that still draws, or is something else than as written, it is the whole model that draws.
        """
        layers = {name: part for name, part in model.named_modules() if part.training}
        norms = frozenset(name for name, part in layers.items() if isinstance(part, _BatchNorm))
        drawing = frozenset(name for name, part in layers.items() if is_random_layer(part))
        with drawing_modules(model) as names:
            written = step(frozenset())
        drawing |= names
        if written.drew and not _draws_nothing_else(step, norms | drawing, written):
            drawing |= {WHOLE_MODEL}
        without_statistics = any(map(_has_no_statistics, model.modules()))
        return cls(norms, drawing, without_statistics)


def _draws_nothing_else(step: Callable[[frozenset[str]], Step], quiet: frozenset[str], written: Step) -> bool:
    """Whether a step with these in eval mode draws nothing, and computes what the ``written`` one does."""
    try:
        found = step(quiet)
    except Exception:  # of any kind: in eval mode a model may return what its loss does not take
        return False
    shapes = {path: each.shape for path, each in found.outputs.items()}
    has_all = all(shapes.get(path) == each.shape for path, each in written.outputs.items())
    return not found.drew and has_all and written.gradients.keys() <= found.gradients.keys()


def _has_no_statistics(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) and part.running_mean is None


@dataclass(frozen=True)
class Modes:
    """``together`` for most steps, if there is one; then the first of ``training`` that passes."""

    together: Mode | None
    training: tuple[Mode, ...]

    @classmethod
    def of(cls, nature: Nature, placed: Placed, chunks: Chunks, group: ProcessGroup) -> Modes:
        """Every rank gets the same."""
        own = [each.name for each in parts(placed.module) if isinstance(each.module, nn.SyncBatchNorm)]
        by_rank = group.all_gather(own)  # stages have other modules
        synchronized = frozenset(name for names in by_rank for name in names if group.size > 1)
        norms, drawing = nature.batch_norms - synchronized, nature.drawing
        together = Mode(norms | drawing)
        if not (norms | drawing) and not nature.has_no_eval_mode:
            return cls(together, ())
        strict = Mode(synchronized if chunks.are_synchronized else frozenset(), chunks)
        others = []
        if not chunks.draws_alike:
            others.append(Mode(strict.quiet | drawing, chunks, OTHER_NUMBERS))
        if not chunks.is_known and nature.batch_norms:
            others.append(Mode(drawing, None, ALL_ROWS))
        if WHOLE_MODEL in drawing:
            others = []
        if not chunks.splits and chunks.is_known and chunks.draws_alike and not synchronized:
            return cls(strict, ())  # it computes a batch as one, in training mode
        if nature.has_no_eval_mode and chunks.is_known and WHOLE_MODEL not in drawing:
            return cls(replace(strict, quiet=strict.quiet | drawing), ())
        has_no_mode = WHOLE_MODEL in drawing or nature.has_no_eval_mode
        return cls(None if has_no_mode else together, (strict, *others))


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a batch norm uses the statistics of its rows."""
    return any(
        isinstance(part, _BatchNorm) and (part.training or _has_no_statistics(part))
        for part in model.modules()
    )


@contextmanager
def drawing_modules(model: nn.Module) -> Iterator[set[str]]:
    """The names of the modules that draw from the host's generators, complete when the context ends."""
    drawing, latest = set[str](), random_state()
    names = {part: name for name, part in model.named_modules()}  # with those of wrappers: see mark_drawing

    def look() -> None:
        nonlocal latest
        state = random_state()
        if state != latest:
            latest = state
            drawing.update(names[call.part.module] for call in running[-1:])

    with running_calls(model, look) as running, uncompiled(model):
        yield drawing
        look()

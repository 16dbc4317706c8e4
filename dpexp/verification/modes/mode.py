"""Mode: how a model is verified whose outputs depend on the rows beside a row, or on random numbers.

rows together    the single device computes a batch as one. Batch norms whose rows are split and layers that
                 draw random numbers are in eval mode; everything else must not depend on the split
rows in chunks   the single device computes one chunk of rows after the other in training mode, with the
                 random numbers of each: what PyTorch's DataParallel and DistributedDataParallel define
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp.config.alike import listed
from dpexp.distributed.process_group import ProcessGroup
from dpexp.parallel.rng_order import DRAWS, PROBABILITIES, is_random_layer, mark_drawing
from dpexp.strategies.modules.wrappers import parts, wrapped_key
from dpexp.strategies.placed import Placed
from dpexp.verification.modes.chunks import Chunked, Chunks
from dpexp.verification.modes.random_draws import WHOLE_MODEL, Seeds

OTHER_NUMBERS = "random layers draw other numbers than on a single device, and are not compared"
ALL_ROWS = "batch norms use the statistics of all rows, and random layers are not compared"

IN_EVAL_MODE = ("BatchNorm in eval mode", "dropout in eval mode")
"""How the notes begin that say why: where training mode is compared as well, the reason does not matter."""

_WHY = {
    "BatchNorm": "a shard uses its own statistics; PyTorch keeps those of replica 0, or of each rank",
    "dropout": "each shard draws its own masks",
}


@dataclass(frozen=True)
class RowsTogether:
    """``quiet`` are modules whose forward draws random numbers by itself, ``trained`` batch norms that see
    every row of a batch, and stay in training mode; ``chunks`` are those of the layout, which may have other
    random layers than the model: with another probability, say.
    """

    quiet: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    chunks: Chunks = field(default_factory=Chunks)
    has_batch_norms: bool = False
    has_other_layers: bool = False
    seeds: Seeds | None = None

    @property
    def may_draw(self) -> bool:
        """Whether the single device may draw random numbers."""
        return WHOLE_MODEL in self.quiet

    def prepare(self, model: nn.Module) -> list[str]:
        """Set the mode of every module of a copy of the model; returns notes about it."""
        return set_comparable_mode(model, self.quiet, self.trained)

    def of_layout(self, placed: Placed, model: nn.Module, group: ProcessGroup, trains: bool) -> RowsTogether:
        """The mode of the single device; it also sets that of modules that the layout has made or changed."""
        layers = {name for name, part in model.named_modules() if _depends_on_rows(part)}
        for part in parts(placed.module):
            if part.name in layers and not (wrapped_key(part.module) or isinstance(part.module, nn.RNNBase)):
                part.module.eval()
            elif part.name in self.quiet or self.may_draw:
                part.module.training = False
        trained = _train_batch_norms(placed, group) if trains and not self.may_draw else frozenset[str]()
        by_rank = group.all_gather((trained, _has_other_layers(placed, model)))  # stages have other modules
        return replace(
            self,
            trained=frozenset().union(*(names for names, _ in by_rank)),
            chunks=Chunks.of(placed, group),
            has_batch_norms=any(isinstance(part, _BatchNorm) for part in model.modules()),
            has_other_layers=any(others for _, others in by_rank),
        )

    def of_single_device(self, model: nn.Module) -> nn.Module:
        """The model as the single device computes it."""
        return model

    def leaves_out(self, model: nn.Module) -> bool:
        """Whether a module is in training mode, and is compared in another."""
        return bool(self.quiet) or any(
            _depends_on_rows(part) and part.training and name not in self.trained
            for name, part in model.named_modules()
        )

    def in_training(self) -> tuple[RowsInChunks, list[RowsInChunks]]:
        """The mode to compare such modules in, and those that a user's layout may define where that fails."""
        strict, others = RowsInChunks(self.chunks, self.quiet - {WHOLE_MODEL}), list[RowsInChunks]()
        if not self.chunks.draws_alike:
            others.append(replace(strict, note=OTHER_NUMBERS))
        if not self.chunks.is_known and self.has_batch_norms:
            others.append(replace(strict, chunks=Chunks(), note=ALL_ROWS))
        return strict, [] if self.has_other_layers else others


@dataclass(frozen=True)
class RowsInChunks:
    """``drawing`` are modules whose forward draws random numbers by itself. With a ``note``, which says what
    the layout does otherwise by definition, random layers are in eval mode; so are synchronized batch norms.
    """

    chunks: Chunks
    drawing: frozenset[str] = frozenset()
    note: str = ""
    seeds: Seeds = field(default_factory=Seeds)

    may_draw = True

    def prepare(self, model: nn.Module) -> list[str]:
        """Set the mode of every module of a copy of the model; returns notes about it."""
        mark_drawing(model, self.drawing)
        self._silence(model)
        return [f"in training mode, {self.note}"] if self.note else []

    def of_layout(self, placed: Placed, model: nn.Module, group: ProcessGroup, trains: bool) -> RowsInChunks:
        """The mode of the single device, which is the same."""
        self._silence(placed.module)
        return self

    def of_single_device(self, model: nn.Module) -> Chunked:
        """The model as the single device computes it."""
        return self.chunks.split(model, self.seeds)

    def _silence(self, model: nn.Module) -> None:
        for part in model.modules():
            if self.chunks.are_synchronized and isinstance(part, _BatchNorm):
                part.eval()  # it needs all chunks at once, and is compared with rows together
            elif not self.note:
                continue
            elif isinstance(part, nn.RNNBase):
                part.dropout = 0.0
            elif is_random_layer(part) or DRAWS in vars(part):
                part.training = False


Mode = RowsTogether | RowsInChunks


def _depends_on_rows(layer: nn.Module) -> bool:
    """Whether what a layer computes of a row in training mode depends on the split of rows."""
    return isinstance(layer, _BatchNorm) or is_random_layer(layer)


def _has_other_layers(placed: Placed, model: nn.Module) -> bool:
    """Whether a random layer of the model is not random in the layout, or has another probability."""
    layers = {name: part for name, part in model.named_modules() if is_random_layer(part)}
    return any(
        _probabilities(part.module) != _probabilities(layers[part.name])
        for part in parts(placed.module)
        if part.name in layers and not wrapped_key(part.module)
    )


def _probabilities(layer: nn.Module) -> list[object]:
    return [vars(layer).get(key) for key in PROBABILITIES]


def _train_batch_norms(placed: Placed, group: ProcessGroup) -> frozenset[str]:
    """Put batch norms that see every row of a batch into training mode, and return their names.

    These are SyncBatchNorm over ranks, and those of layouts that are known not to split batches.
    """
    in_full = group.dp_size == 1 and not placed.is_opaque
    names = set()
    for part in parts(placed.module):
        is_synchronized = group.size > 1 and isinstance(part.module, nn.SyncBatchNorm)
        if isinstance(part.module, _BatchNorm) and (is_synchronized or (in_full and part.pieces == 1)):
            part.module.training = True
            names.add(part.name)
    return frozenset(names)


def set_comparable_mode(
    model: nn.Module, quiet: frozenset[str] = frozenset(), trained: frozenset[str] = frozenset()
) -> list[str]:
    """Put modules that compute differently by shard in training into eval mode; returns notes about them.

    BatchNorm normalizes with the statistics of its shard and dropout draws the masks of its shard, on real
    devices as on virtual ones: neither equals a single device, and neither is wrong.
    ``quiet`` are the names of modules whose forward calls dropout as a function, ``trained`` those of batch
    norms to leave in training mode.
    """
    changed: dict[str, list[str]] = {"BatchNorm": [], "dropout": []}
    for name in quiet - {WHOLE_MODEL}:
        model.get_submodule(name).training = False  # only its own, which its forward reads
    if WHOLE_MODEL in quiet:
        model.eval()
    for name, part in model.named_modules():
        if isinstance(part, _BatchNorm) and name not in trained:
            changed["BatchNorm"].append(name or "the model")
            part.eval()
        if is_random_layer(part):
            changed["dropout"].append(name or "the model")
            part.training = False  # only its own: a block may have its probability beside other layers
        if isinstance(part, nn.RNNBase):  # cuDNN has no backward in eval mode
            part.dropout = 0.0
            part.train()
    drawing = listed(sorted(name or "the model itself" for name in quiet - {WHOLE_MODEL}))
    if WHOLE_MODEL in quiet:
        return [f"the whole model in eval mode: {drawing or 'the loss'} draws random numbers in any mode"]
    notes = [
        f"{kind} in eval mode ({listed(names)}): {_WHY[kind]}" for kind, names in changed.items() if names
    ]
    if drawing:
        why = "draws random numbers outside of dropout modules"
        notes.append(f"{drawing} in eval mode, its submodules in training mode: its forward {why}")
    return notes

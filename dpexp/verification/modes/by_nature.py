"""By nature: what a layout computes differently from a single device without being wrong, and why.

A shard of the batch has statistics and random masks of its own, on real devices as on virtual ones. Such
modules are compared in eval mode. What a forward writes to a buffer, or to a parameter (``max_norm`` of an
embedding), each shard writes from its own rows; after each verified step the single device's value replaces
it, so that everything else can be compared. A note names all of these.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from dpexp.config.alike import listed
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.modules.hooks import hooked_parameters
from dpexp.strategies.modules.wrappers import parts
from dpexp.training.trainer import Trainer
from dpexp.verification.limits.compare import whole_error
from dpexp.verification.limits.norms import distance

_REPLICAS = "each replica writes from its own rows, and PyTorch keeps what replica 0 writes in place"
_RANKS = (
    "each rank writes from its own rows; DistributedDataParallel sends the buffers of rank 0 to all before a "
    "forward, fully_shard keeps those of each rank"
)


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""The buffers of batch norms, of which PyTorch keeps those of replica 0 or of each rank."""


def is_statistic(buffer: str) -> bool:
    """Whether a buffer of this name is one of a batch norm."""
    return buffer.rpartition(".")[2] in STATISTICS


def hook_notes(model: nn.Module, dp_size: int) -> list[str]:
    """A note about hooks on parameters, which ranks call before the gradients are added up."""
    names = hooked_parameters(model) if dp_size > 1 else []
    if not names:
        return []
    return [f"hooks on {listed(names)} get the gradient of the rank's own rows, before the all-reduce"]


@dataclass
class WrittenByShards:
    """Buffers and parameters that the forward of several shards writes, and how far they were apart."""

    original: Mapping[str, torch.Tensor]  # buffers before the first step
    dp_size: int
    tolerance: float
    apart: dict[str, float] = field(default_factory=dict)

    def names(self, layout: Trainer, kind: str) -> set[str]:
        """The names of the tensors in modules that get a part of the batch."""
        return {
            f"{part.name}.{key}".lstrip(".")
            for part in parts(layout.placed.module)
            if part.pieces > 1 or (self.dp_size > 1 and not isinstance(part.module, nn.SyncBatchNorm))
            for key in (part.module._buffers if kind == "buffers" else part.module._parameters)
        }

    def replace_buffers(
        self,
        layout: Trainer,
        reference: Trainer,
        compared: Collection[str] = (),
        carried: Collection[str] = (),
    ) -> dict[str, torch.Tensor]:
        """Give the layout the reference's values of such buffers; returns the buffers to compare.

        Those in ``compared`` have been compared before, and those ``carried`` are replaced later.
        """
        expected, found = reference.buffers(), layout.buffers()
        for name in self.names(layout, "buffers") & expected.keys():
            value, before = expected[name], self.original.get(name)
            if before is not None and distance(value, before.to(value.dtype)) == 0:
                continue  # the single device did not write to it
            if name not in found or found[name].shape != value.shape:
                self._note(name, math.inf)
                found[name] = value
            else:
                if name not in compared:
                    self._note(name, whole_error(found[name], value))
                if name not in carried:
                    found[name].copy_(value)
        return {name: tensor for name, tensor in found.items() if name in expected}

    def replace_parameters(self, layout: Trainer, reference: Trainer, names: set[str]) -> None:
        """The same for the parameters of these names; every rank must call this with the same ones."""
        shards, own = layout.placed.shards, layout.parameters()
        expected = reference.parameters()
        for name in sorted(names & self.names(layout, "parameters") & own.keys()):
            value = expected[name].detach()
            self._note(name, whole_error(shards.full_tensor(name, own[name]), value))
            shards.load_full_tensor(name, own[name], value)

    def _note(self, name: str, error: float) -> None:
        if error > self.tolerance:
            self.apart[name] = max(error, self.apart.get(name, 0.0))

    def notes(self, group: ProcessGroup) -> list[str]:
        """A note about these tensors, by how far they were apart on any rank; every rank must call this."""
        apart: dict[str, float] = {}
        for of_rank in group.all_gather(self.apart):
            apart |= {name: max(value, apart.get(name, 0.0)) for name, value in of_rank.items()}
        names = listed((f"{name} (by {apart[name]:.1e})" for name in sorted(apart)), most=5)
        why = _RANKS if self.dp_size > 1 else _REPLICAS
        return [f"the forward writes to {names}, which differs from a single device: {why}"] if apart else []

"""The options of each strategy: one class for each, listed in ``STRATEGY_OPTIONS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from dpexp.config.options import SPEC, control_option, option, validate


@dataclass(frozen=True)
class StrategyOptions:
    """The base class, and the class of strategies without options."""

    def __post_init__(self) -> None:
        validate(self)

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The options with their devices renamed; most options name none."""
        return self


@dataclass(frozen=True)
class RankOptions(StrategyOptions):
    """Options of a strategy whose run may be one of several processes, the ranks."""

    comm: str = control_option(
        "auto",
        "Communication backend of the ranks; auto is nccl on CUDA and gloo on the CPU.",
        choices=("auto", "gloo", "nccl"),
    )
    comm_timeout: float = control_option(
        60.0, "Seconds of silence after which a rank counts as lost.", min=1.0, max=1e6
    )
    snapshot_every: int | None = control_option(
        None,
        "Steps between snapshots; restarted ranks, and --resume, continue from the newest.",
        min=1,
        max=10**9,
    )
    resume: str = control_option("", "Continue this run from its newest snapshot.", metavar="RUN")


@dataclass(frozen=True)
class LaunchOptions(RankOptions):
    """Options of a strategy that starts its ranks with torchrun's launcher, unless they run already."""

    nnodes: str = control_option("1", "Hosts, as 2, or minimum:maximum, as 1:2.", metavar="N[:M]")
    rdzv_endpoint: Annotated[str, SPEC] = control_option(
        "", "Rendezvous address, the same on each host. Default: only this host.", metavar="HOST:PORT"
    )
    join_timeout: float = control_option(600.0, "Seconds to wait for the other hosts.", min=1.0, max=1e6)
    max_restarts: int = control_option(3, "Number of restarts of lost ranks.", min=0, max=10**6)


@dataclass(frozen=True)
class DdpOptions(LaunchOptions):
    """Options of ``ddp``."""

    bucket_mb: float = option(
        25.0, "Megabytes of gradients that are all-reduced together.", min=0.001, max=1e6
    )
    find_unused: bool = option(
        False,
        "Search every step for parameters without a gradient, instead of raising an error for them.",
        flag="--find-unused/--all-used",
    )


@dataclass(frozen=True)
class FsdpOptions(LaunchOptions):
    """Options of ``fsdp``."""

    block: tuple[str, ...] = option(
        ("*",), "Submodule to shard as a unit; repeat for several. * means every direct child."
    )


@dataclass(frozen=True)
class BlockOptions(StrategyOptions):
    """Options of ``block``."""

    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several."
    )


@dataclass(frozen=True)
class HybridOptions(RankOptions):
    """Options of ``hybrid``."""

    host: tuple[str, ...] = option(
        ("embedding",), "Submodule that stays on the host, a name or pattern; repeat for several."
    )
    sparse: bool = option(
        False,
        "Sparse gradients for the host's embeddings: only the rows of the batch are transferred.",
        flag="--sparse/--dense",
    )
    pipeline: bool = option(
        False,
        "Split the batch: the host embeds one part while the accelerator computes the other.",
        flag="--pipeline/--serial",
    )
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds some rows of the embeddings, instead of all.",
        flag="--shard-embedding/--whole-embedding",
    )


@dataclass(frozen=True)
class PlaceOptions(StrategyOptions):
    """Options of ``place``."""

    place: tuple[str, ...] = option(
        ("*=cpu",),
        "Submodules and their device, as layers.*=cuda:0; repeat for several. Others go to the first device.",
        metavar="NAME=DEVICE",
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        entries = (entry.rpartition("=") for entry in self.place)
        return PlaceOptions(tuple(f"{name}={names.get(to.strip(), to)}" for name, _, to in entries))


REFERENCE = "single"
"""The strategy that the others are compared with: the model on one device."""

STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {
    "single": StrategyOptions,
    "whole": StrategyOptions,
    "block": BlockOptions,
    "functional": StrategyOptions,
    "hybrid": HybridOptions,
    "place": PlaceOptions,
    "ddp": DdpOptions,
    "fsdp": FsdpOptions,
}

STRATEGY_HELP: dict[str, str] = {
    "single": "The model on one device: the reference.",
    "whole": "The whole model in DataParallel.",
    "block": "Only the named submodules in DataParallel.",
    "functional": "data_parallel(module, inputs, devices), composed of the four primitives.",
    "hybrid": "Named submodules stay on the host, the rest goes to the accelerators.",
    "place": "Each submodule on the device that a device map names.",
    "ddp": "DistributedDataParallel: one process a device, under torchrun.",
    "fsdp": "FSDP2 fully_shard: one process a device, each with a part of every parameter.",
}

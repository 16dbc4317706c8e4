"""The options of each strategy: one class a strategy, ``STRATEGY_OPTIONS`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dpexp.config.errors import unknown
from dpexp.config.options import option, option_fields, typed_value


@dataclass(frozen=True)
class StrategyOptions:
    """Options of a strategy that has none of its own; base of those that have.

    ``launcher`` names what starts the strategy's processes where nothing has started them yet; without
    one the run is one process. ``in_ranks`` is True where a run may be one of several processes (ranks).
    """

    launcher: ClassVar[str | None] = None
    in_ranks: ClassVar[bool] = False

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The options with other names for the devices that they name; most name none."""
        return self


@dataclass(frozen=True)
class RankOptions(StrategyOptions):
    """Options of a strategy that may run as one of several ranks, started by torchrun."""

    in_ranks: ClassVar[bool] = True

    comm: str = option(
        "auto",
        "What the ranks talk through; auto is nccl on CUDA and gloo on the CPU.",
        choices=("auto", "gloo", "nccl"),
    )
    comm_timeout: float = option(60.0, "Seconds after which a silent rank is given up.", min=1.0)
    snapshot_every: int | None = option(
        None, "Steps between snapshots, from which lost ranks, or --resume, go on.", min=1
    )
    resume: str = option("", "Go on with this run from its newest snapshot.", metavar="RUN")


@dataclass(frozen=True)
class LaunchOptions(RankOptions):
    """Options of a strategy that starts torchrun's launcher on this host where none has started it."""

    launcher: ClassVar[str | None] = "torchrun"

    nnodes: str = option("1", "Hosts, as 2, or fewest:most as 1:2.", metavar="N[:M]")
    rdzv_endpoint: str = option(
        "", "Where the hosts meet; the same on each. Default: this host alone.", metavar="HOST:PORT"
    )
    join_timeout: float = option(600.0, "Seconds to wait for the other hosts.", min=1.0)
    max_restarts: int = option(3, "Times that lost ranks are started anew.", min=0)


@dataclass(frozen=True)
class DdpOptions(LaunchOptions):
    """Options of ``ddp``."""

    bucket_mb: float = option(25.0, "Megabytes of gradients that are all-reduced together.", min=0.001)
    find_unused: bool = option(
        False,
        "Look in every step for parameters that get no gradient, instead of refusing them.",
        flag="--find-unused/--all-used",
    )


@dataclass(frozen=True)
class FsdpOptions(LaunchOptions):
    """Options of ``fsdp``."""

    block: tuple[str, ...] = option(
        ("*",), "Submodule to shard as a unit; repeat for several. * is every direct child.", metavar="NAME"
    )


@dataclass(frozen=True)
class BlockOptions(StrategyOptions):
    """Options of ``block``."""

    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several.", metavar="NAME"
    )


@dataclass(frozen=True)
class HybridOptions(RankOptions):
    """Options of ``hybrid``."""

    host: tuple[str, ...] = option(
        ("embedding",),
        "Submodule that stays on the host, a name or pattern; repeat for several.",
        metavar="NAME",
    )
    sparse: bool = option(
        False,
        "Sparse gradients for the host's embeddings: only the rows of the batch move.",
        flag="--sparse/--dense",
    )
    pipeline: bool = option(
        False,
        "Split the batch so that the host embeds one part while the accelerator works on the other.",
        flag="--pipeline/--serial",
    )
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds some rows of the embeddings, instead of all of them.",
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


def build_options(cls: type[StrategyOptions], values: Mapping[str, Any], where: str) -> StrategyOptions:
    known = [field.name for field in option_fields(cls)]
    for key in values:
        if key not in known:
            raise unknown("option", key, known, where)
    return cls(**{key: typed_value(cls, key, value, where) for key, value in values.items()})

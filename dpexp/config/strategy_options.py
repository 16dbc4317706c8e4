"""The options of each strategy: one class for each, listed in ``STRATEGY_OPTIONS``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dpexp.config.errors import ConfigError, shown
from dpexp.config.options import SPEC, control_option, option, validate


@dataclass(frozen=True)
class StrategyOptions:
    """The base class, and the class of strategies without options.

    ``emulated``: how many devices a run emulates where ``--devices auto`` finds no accelerator.
    ``mixes_kinds``: whether the devices may be of several kinds, as a CUDA and an MPS device.
    """

    emulated: ClassVar[int] = 0
    mixes_kinds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The options with their devices renamed; most options name none."""
        return self

    @property
    def launches(self) -> bool:
        """Whether a run that torchrun did not start launches its ranks by itself."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether rows of tables are looked up before the updates that precede their batch."""
        return False


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
    resume: str = control_option(
        "", "Continue this run from its newest snapshot.", metavar="RUN", empty=False
    )

    @property
    def has_snapshots(self) -> bool:
        """Whether the state of a run is saved when it is asked for, or the run receives SIGTERM."""
        return True

    def chunk_of(self, rank: int, world_size: int) -> tuple[int, int]:
        """(which chunk of a global batch a rank computes, into how many chunks the ranks split it)."""
        return rank, world_size


@dataclass(frozen=True)
class LaunchOptions(RankOptions):
    """Options of a strategy that starts its ranks with torchrun's launcher, unless they run already."""

    nnodes: str = control_option("1", "Hosts, as 2, or minimum:maximum, as 1:2.", metavar="N[:M]")
    rdzv_endpoint: Annotated[str, SPEC] = control_option(
        "", "Rendezvous address, the same on each host. Default: only this host.", metavar="HOST:PORT"
    )
    join_timeout: float = control_option(600.0, "Seconds to wait for the other hosts.", min=1.0, max=1e6)
    max_restarts: int = control_option(3, "Number of restarts of lost ranks.", min=0, max=10**6)

    @property
    def launches(self) -> bool:
        return True

    @property
    def ranks(self) -> int:
        """The number of ranks that the options ask for; 0 leaves it to the devices."""
        return 0


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
class ReplicateOptions(StrategyOptions):
    """Options of a strategy that makes replicas."""

    emulated = 2  # one device has no replicas


@dataclass(frozen=True)
class DataParallelOptions(ReplicateOptions):
    """Options of ``whole`` and ``functional``."""

    output_device: str = control_option(
        "", "Device that gathers the outputs and computes the loss. Default: the first.", metavar="DEVICE"
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        name = self.output_device.strip()
        return DataParallelOptions(names.get(name, name))


@dataclass(frozen=True)
class BlockOptions(ReplicateOptions):
    """Options of ``block``."""

    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several."
    )


@dataclass(frozen=True)
class HybridOptions(RankOptions):
    """Options of ``hybrid``."""

    emulated = 1

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
        "Look up the next batch while the accelerator computes this one; needs --sparse.",
        flag="--pipeline/--serial",
    )
    lookahead: int = option(1, "With --pipeline: batches that are looked up ahead.", min=1, max=1024)
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds a part of the embeddings, instead of all.",
        flag="--shard-embedding/--whole-embedding",
    )
    shard_by: str = option(
        "auto",
        "What each rank holds of sharded embeddings: some rows, tables or columns; auto chooses by size.",
        choices=("auto", "row", "table", "column"),
    )
    table_file: Annotated[str, SPEC] = control_option(
        "",
        "Keep the host's embeddings in files of this folder, mapped into memory: they may be larger than it.",
        metavar="DIR",
        empty=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        excluded = {
            "--shard-embedding": self.shard_embedding,
            "--snapshot-every": self.snapshot_every is not None,
            "--resume": bool(self.resume),
        }
        for flag in (flag for flag, given in excluded.items() if self.table_file and given):
            raise ConfigError(
                f"--table-file {self.table_file} keeps tables out of memory, and {flag} copies them: "
                "give one of the two"
            )

    @property
    def has_snapshots(self) -> bool:
        return not self.table_file

    @property
    def looks_ahead(self) -> bool:
        return self.pipeline


@dataclass(frozen=True)
class PlaceOptions(StrategyOptions):
    """Options of ``place``."""

    emulated = 2
    mixes_kinds = True

    place: tuple[str, ...] = option(
        (),
        "Submodules and their device, as layers.*=cuda:0; repeat for several. Others go to the first device.",
        metavar="NAME=DEVICE",
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        entries = (entry.rpartition("=") for entry in self.place)
        return PlaceOptions(tuple(f"{name}={names.get(to.strip(), to)}" for name, _, to in entries))


_SIZE = re.compile(r"[1-9]\d{0,3}", re.ASCII)


@dataclass(frozen=True)
class CustomOptions(LaunchOptions):
    """Options of ``custom``.

    Ranks are numbered as in ``init_device_mesh``: the last dimension of the mesh varies fastest.
    """

    mixes_kinds = True

    layout: Annotated[str, SPEC] = option(
        "",
        "Function that lays the model out: (model, mesh) -> module, or (model, devices) -> module.",
        metavar="FILE.py:FUNCTION",
    )
    mesh: str = option(
        "",
        "Dimensions of the ranks' device mesh, as dp=2,tp=2. Ranks along dimensions whose names begin with "
        "dp split the batch; ranks along any other compute the same rows.",
        metavar="NAME=SIZE,...",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._dimensions()

    @property
    def launches(self) -> bool:
        return bool(self.mesh)

    @property
    def ranks(self) -> int:
        return math.prod(self._dimensions().values()) if self.mesh else 0

    def mesh_sizes(self, world_size: int) -> dict[str, int]:
        """The size of each dimension; without ``--mesh`` all ranks are along ``dp``. Raises ConfigError."""
        sizes = self._dimensions() or {"dp": world_size}
        if math.prod(sizes.values()) != world_size:
            raise ConfigError(
                f"--mesh {self.mesh} has {self.ranks} ranks, and {world_size} run: start {self.ranks}, "
                "or give sizes whose product is the number of ranks"
            )
        return sizes

    def chunk_of(self, rank: int, world_size: int) -> tuple[int, int]:
        sizes = self.mesh_sizes(world_size)
        coordinate, stride = [], world_size
        for size in sizes.values():
            stride //= size
            coordinate.append(rank // stride % size)
        return chunk_at(coordinate, sizes)

    def _dimensions(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for part in self.mesh.split(",") if self.mesh else ():
            name, _, size = map(str.strip, part.partition("="))
            if not name.isidentifier() or not _SIZE.fullmatch(size) or name in sizes:
                raise ConfigError(
                    f"--mesh {shown(self.mesh)}: {shown(part)} is not a new NAME=SIZE; write "
                    "NAME=SIZE,... as dp=2,tp=2"
                )
            sizes[name] = int(size)
        return sizes


def chunk_at(coordinate: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, int]:
    """(chunk of a batch, number of chunks) of a rank in a mesh: dimensions named dp* split the rows."""
    index, count = 0, 1
    for (name, size), place in zip(sizes.items(), coordinate, strict=True):
        if name.startswith("dp"):
            index, count = index * size + place, count * size
    return index, count


REFERENCE = "single"
"""The strategy that the others are compared with: the model on one device."""

STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {
    "single": StrategyOptions,
    "whole": DataParallelOptions,
    "block": BlockOptions,
    "functional": DataParallelOptions,
    "hybrid": HybridOptions,
    "place": PlaceOptions,
    "ddp": DdpOptions,
    "fsdp": FsdpOptions,
    "custom": CustomOptions,
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
    "custom": "Your own layout: a function that takes the model and a device mesh or devices.",
}

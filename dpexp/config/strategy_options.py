"""The strategies: the options of each, and what it declares to the rest of dpexp.

``STRATEGY_OPTIONS`` has them by name, in the order of every screen. The docstring of a class is the help of
its command. Nothing else asks which strategy a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from dpexp.config.errors import ConfigError
from dpexp.config.factories import Factory, find
from dpexp.config.mesh import Mesh
from dpexp.config.options import option, validate
from dpexp.config.words import plural


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """The options of a strategy.

    ``strategy``: its name on the command line.
    ``default_model``: the default of ``--model``. ``examples``: options that the end of the help shows.
    ``emulated``: how many devices a run emulates where ``--devices auto`` finds no accelerator.
    ``uses_one_device``: whether it is an error to name several.
    ``checkpoints``: whether ``--checkpoint`` is possible.
    ``copies_to_all``: whether a model is copied to devices too that get no rows of a small batch.
    """

    strategy: ClassVar[str]
    default_model: ClassVar[str] = "linear"
    examples: ClassVar[tuple[str, ...]] = ()
    emulated: ClassVar[int] = 0
    uses_one_device: ClassVar[bool] = False
    copies_to_all: ClassVar[bool] = False
    checkpoints: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate(self)

    @property
    def factories(self) -> dict[str, Factory]:
        """The user's functions that options name, by option. Raises ConfigError as ``find``."""
        return {}

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The options with their devices renamed; most options name none."""
        return self

    @property
    def launched_ranks(self) -> int | None:
        """How many ranks a run launches by itself: 0 as many as it has devices, None is one process."""
        return None


@dataclass(frozen=True)
class RankOptions(StrategyOptions):
    """Options of a strategy that starts its ranks with torchrun's launcher, unless they run already."""

    comm_timeout: float = option(
        60.0, "Seconds of silence after which a rank counts as lost.", min=1.0, max=1e6
    )

    def mesh_of(self, world_size: int) -> Mesh:
        """The mesh of so many ranks. Raises ConfigError."""
        return Mesh.of_rows(world_size)

    @property
    def launched_ranks(self) -> int | None:
        """As many as the run has devices."""
        return 0


@dataclass(frozen=True)
class SingleOptions(StrategyOptions):
    """The model on one device: the reference."""

    strategy = "single"
    examples = ("--devices cpu --steps 500", "--model cnn --data digits --epochs 2")
    uses_one_device = True


@dataclass(frozen=True)
class WholeOptions(StrategyOptions):
    """The whole model in DataParallel."""

    strategy = "whole"
    emulated = 2  # one device has no replicas
    examples = ("--virtual 3", "--devices cuda:0,cuda:1 --data digits --batch-size 256")


@dataclass(frozen=True)
class BlockOptions(StrategyOptions):
    """Only the named submodules in DataParallel."""

    strategy = "block"
    default_model = "blocks"
    examples = ("--virtual 2 --block block2", "--virtual 2 --model transformer --block encoder")
    emulated = 2
    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several."
    )


@dataclass(frozen=True)
class FunctionalOptions(StrategyOptions):
    """data_parallel(module, inputs, devices), composed of the four primitives."""

    strategy = "functional"
    emulated = 2
    examples = ("--virtual 3", "--virtual 2 --model mlp --data digits")
    copies_to_all = True


@dataclass(frozen=True)
class HybridOptions(StrategyOptions):
    """Named submodules stay on the host, the rest goes to the accelerators."""

    strategy = "hybrid"
    default_model = "embedding"
    examples = ("--virtual 1 --sparse", "--virtual 1 --data text:README.md --lr 1")
    emulated = 1
    host: tuple[str, ...] = option(
        ("embedding",), "Submodule that stays on the host, a name or pattern; repeat for several."
    )
    sparse: bool = option(
        False,
        "Sparse gradients for the host's embeddings: only the rows of the batch are transferred.",
        flag="--sparse/--dense",
    )


@dataclass(frozen=True)
class PlaceOptions(StrategyOptions):
    """Each submodule on the device that a device map names."""

    strategy = "place"
    default_model = "blocks"
    examples = (
        "--place block1=cpu:0 --place block2=cpu:1 --virtual 2",
        "--place 'block*=cuda:0' --dry-run",
    )
    emulated = 2
    place: tuple[str, ...] = option(
        (),
        "Submodules and their device, as layers.*=cuda:0; repeat for several. Others go to the first device.",
        metavar="NAME=DEVICE",
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The devices of ``place`` renamed."""
        entries = (entry.rpartition("=") for entry in self.place)
        renamed = tuple(f"{name}={names.get(to.strip(), to)}" for name, _, to in entries)
        return replace(self, place=renamed)


@dataclass(frozen=True)
class DdpOptions(RankOptions):
    """DistributedDataParallel: one process per device.

    The command starts the processes, as many as --devices says; torchrun may start them instead.
    """

    strategy = "ddp"
    examples = ("--devices 2", "--devices 4 --bucket-mb 1")
    bucket_mb: float = option(
        25.0, "Megabytes of gradients that are all-reduced together.", min=0.001, max=1e6
    )
    find_unused: bool = option(
        False,
        "Search every step for parameters without a gradient, instead of raising an error for them.",
        flag="--find-unused/--all-used",
    )


@dataclass(frozen=True)
class FsdpOptions(RankOptions):
    """FSDP2 fully_shard: one process per device, each with a part of every parameter.

    The command starts the processes, as many as --devices says; torchrun may start them instead.
    """

    strategy = "fsdp"
    default_model = "blocks"
    examples = ("--devices 2", "--devices 2 --model transformer --block encoder")
    block: tuple[str, ...] = option(
        ("*",),
        "Submodule to shard as a unit; repeat for several. * means every direct child, and where one has a "
        "list of layers inside, each of these and what is beside the list.",
    )


@dataclass(frozen=True)
class CustomOptions(RankOptions):
    """Your own layout: a function that takes the model and a device mesh or devices."""

    strategy = "custom"
    checkpoints = False
    default_model = "blocks"
    examples = (
        "--layout layout.py:parallelize --mesh dp=2,tp=2",
        "--layout layout.py:parallelize --virtual 2",
    )
    layout: str = option(
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
        self._mesh  # noqa: B018 - raises ConfigError

    @cached_property
    def _mesh(self) -> Mesh | None:
        """``--mesh``, parsed; None without it."""
        return Mesh.parse(self.mesh) if self.mesh else None

    @property
    def factories(self) -> dict[str, Factory]:
        """The layout."""
        return {"layout": find("--layout", self.layout, {})} if self.layout else {}

    @property
    def launched_ranks(self) -> int | None:
        """Those of ``--mesh``; without it a run is one process."""
        return self._mesh.size if self._mesh else None

    def mesh_of(self, world_size: int) -> Mesh:
        """``--mesh``, or all ranks along ``dp``. Raises ConfigError for another number of ranks."""
        mesh = self._mesh or super().mesh_of(world_size)
        if mesh.size != world_size:
            raise ConfigError(
                f"--mesh {self.mesh} has {plural(mesh.size, 'rank')}, and {world_size} run: "
                f"start {mesh.size}, or give sizes whose product is the number of ranks"
            )
        return mesh


STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {
    each.strategy: each
    for each in (
        SingleOptions,
        WholeOptions,
        BlockOptions,
        FunctionalOptions,
        HybridOptions,
        PlaceOptions,
        DdpOptions,
        FsdpOptions,
        CustomOptions,
    )
}
REFERENCE = "single"
"""The strategy that the others are compared with: the model on one device."""

"""StrategyOptions: the base classes of what is in ``dpexp/config/strategies``, and the entry of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from dpexp.config.factories.factory import Factory
from dpexp.config.mesh import Mesh
from dpexp.config.options import option, validate


@dataclass(frozen=True)
class StrategyEntry:
    """A strategy in the registry: ``layout`` is the class that lays the model out, as ``module:Class``.

    The class is imported on first use, because it needs torch. ``model`` is the default of ``--model``,
    ``examples`` are options that the end of the help shows, and ``order`` is the place on screens.
    """

    name: str
    help: str
    layout: str
    model: str = "linear"
    examples: tuple[str, ...] = ()
    order: int = 1000


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """The options of a strategy, and what it declares to those who need not know which it is.

    ``emulated``: how many devices a run emulates where ``--devices auto`` finds no accelerator.
    ``mixes_kinds``: whether the devices may be of several kinds, as a CUDA and an MPS device.
    ``copies_to_all``: whether a model is copied to devices too that get no rows of a small batch.
    """

    strategy: ClassVar[StrategyEntry]
    emulated: ClassVar[int] = 0
    mixes_kinds: ClassVar[bool] = False
    copies_to_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        validate(self)

    @property
    def factories(self) -> dict[str, Factory]:
        """The user's functions that options name, by option. Raises ConfigError as ``Registry.find``."""
        return {}

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        """The options with their devices renamed; most options name none."""
        return self

    @property
    def rank_options(self) -> RankOptions | None:
        """These options, if the run may be one of several processes; else None."""
        return None

    @property
    def launch_options(self) -> LaunchOptions | None:
        """These options, if a run that torchrun did not start launches its ranks by itself; else None."""
        return None


@dataclass(frozen=True)
class RankOptions(StrategyOptions):
    """Options of a strategy whose run may be one of several processes, the ranks.

    ``has_dtensors``: whether parameters are DTensors, which gloo cannot gather from accelerators.
    """

    has_dtensors: ClassVar[bool] = False
    comm: str = option(
        "auto",
        "Communication backend of the ranks; auto is nccl on CUDA and gloo on the CPU.",
        choices=("auto", "gloo", "nccl"),
    )
    comm_timeout: float = option(
        60.0, "Seconds of silence after which a rank counts as lost.", min=1.0, max=1e6
    )

    @property
    def rank_options(self) -> RankOptions:
        return self

    def mesh_of(self, world_size: int) -> Mesh:
        """The mesh of so many ranks. Raises ConfigError."""
        return Mesh.of_rows(world_size)


@dataclass(frozen=True)
class LaunchOptions(RankOptions):
    """Options of a strategy that starts its ranks with torchrun's launcher, unless they run already."""

    max_restarts: int = option(3, "How often all ranks start again after one is lost.", min=0, max=10**6)

    @property
    def launch_options(self) -> LaunchOptions | None:
        return self

    @property
    def ranks(self) -> int:
        """The number of ranks that the options ask for; 0 leaves it to the devices."""
        return 0


@dataclass(frozen=True)
class ReplicateOptions(StrategyOptions):
    """Options of a strategy that makes replicas."""

    emulated = 2  # one device has no replicas


@dataclass(frozen=True)
class DataParallelOptions(ReplicateOptions):
    """Options of a strategy that gathers the outputs of its replicas."""

    output_device: str = option(
        "", "Device that gathers the outputs and computes the loss. Default: the first.", metavar="DEVICE"
    )

    def with_devices(self, names: Mapping[str, str]) -> StrategyOptions:
        name = self.output_device.strip()
        return replace(self, output_device=names.get(name, name))

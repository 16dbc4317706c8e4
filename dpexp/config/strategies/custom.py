"""The options of ``custom``."""

from dataclasses import dataclass
from functools import cached_property

from dpexp.config.errors import ConfigError
from dpexp.config.factories.factory import Factory
from dpexp.config.factories.registry import Registry
from dpexp.config.factories.spec import SpecField
from dpexp.config.mesh import Mesh
from dpexp.config.options import option
from dpexp.config.ranges import plural
from dpexp.config.strategy_options import LaunchOptions, StrategyEntry


@dataclass(frozen=True)
class CustomOptions(LaunchOptions):
    """Options of ``custom``.

    Ranks are numbered as in ``init_device_mesh``: the last dimension of the mesh varies fastest.
    """

    strategy = StrategyEntry(
        name="custom",
        help="Your own layout: a function that takes the model and a device mesh or devices.",
        layout="dpexp.strategies.custom:Custom",
        model="blocks",
        examples=(
            "--layout layout.py:parallelize --mesh dp=2,tp=2",
            "--layout layout.py:parallelize --virtual 2",
        ),
        order=90,
    )

    mixes_kinds = True

    layout: SpecField = option(
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

    @cached_property
    def function(self) -> Factory:
        """The function that ``--layout`` names. Raises ConfigError as ``Registry.find``."""
        return Registry("--layout", "layout", {}).find(self.layout)

    @property
    def factories(self) -> dict[str, Factory]:
        return {"layout": self.function} if self.layout else {}

    @property
    def launch_options(self) -> LaunchOptions | None:
        return self if self._mesh else None

    @property
    def ranks(self) -> int:
        return self._mesh.size if self._mesh else 0

    def mesh_of(self, world_size: int) -> Mesh:
        mesh = self._mesh or super().mesh_of(world_size)
        if mesh.size != world_size:
            raise ConfigError(
                f"--mesh {self.mesh} has {plural(mesh.size, 'rank')}, and {world_size} run: "
                f"start {mesh.size}, or give sizes whose product is the number of ranks"
            )
        return mesh

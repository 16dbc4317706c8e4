"""The options of ``fsdp``."""

from dataclasses import dataclass

from dpexp.config.options import option
from dpexp.config.strategy_options import LaunchOptions, StrategyEntry


@dataclass(frozen=True)
class FsdpOptions(LaunchOptions):
    """Options of ``fsdp``."""

    strategy = StrategyEntry(
        name="fsdp",
        help="FSDP2 fully_shard: one process per device, each with a part of every parameter.",
        layout="dpexp.strategies.ranks.fsdp:Fsdp",
        model="blocks",
        examples=("--devices 2", "--devices 2 --model transformer --block encoder"),
        order=80,
    )

    has_dtensors = True

    block: tuple[str, ...] = option(
        ("*",), "Submodule to shard as a unit; repeat for several. * means every direct child."
    )

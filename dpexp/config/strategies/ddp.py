"""The options of ``ddp``."""

from dataclasses import dataclass

from dpexp.config.options import option
from dpexp.config.strategy_options import LaunchOptions, StrategyEntry


@dataclass(frozen=True)
class DdpOptions(LaunchOptions):
    """Options of ``ddp``."""

    strategy = StrategyEntry(
        name="ddp",
        help="DistributedDataParallel: one process per device, under torchrun.",
        layout="dpexp.strategies.ranks.ddp:Ddp",
        examples=("--devices 2", "--devices 4 --bucket-mb 1"),
        order=70,
    )

    bucket_mb: float = option(
        25.0, "Megabytes of gradients that are all-reduced together.", min=0.001, max=1e6
    )
    find_unused: bool = option(
        False,
        "Search every step for parameters without a gradient, instead of raising an error for them.",
        flag="--find-unused/--all-used",
    )

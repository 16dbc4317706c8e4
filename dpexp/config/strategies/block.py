"""The options of ``block``."""

from dataclasses import dataclass

from dpexp.config.options import option
from dpexp.config.strategy_options import ReplicateOptions, StrategyEntry


@dataclass(frozen=True)
class BlockOptions(ReplicateOptions):
    """Options of ``block``."""

    strategy = StrategyEntry(
        name="block",
        help="Only the named submodules in DataParallel.",
        layout="dpexp.strategies.replicas.block:Block",
        model="blocks",
        examples=("--virtual 2 --block block2", "--virtual 2 --model transformer --block encoder"),
        order=30,
    )

    block: tuple[str, ...] = option(
        ("block2",), "Submodule to wrap, by name or pattern as layers.*; repeat for several."
    )

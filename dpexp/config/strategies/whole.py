"""The options of ``whole``."""

from dataclasses import dataclass

from dpexp.config.strategy_options import DataParallelOptions, StrategyEntry


@dataclass(frozen=True)
class WholeOptions(DataParallelOptions):
    """Options of ``whole``."""

    strategy = StrategyEntry(
        name="whole",
        help="The whole model in DataParallel.",
        layout="dpexp.strategies.replicas.whole:Whole",
        examples=("--virtual 3", "--devices cuda:0,cuda:1 --batch-size 256"),
        order=20,
    )

"""The options of ``single``."""

from dataclasses import dataclass

from dpexp.config.strategy_options import StrategyEntry, StrategyOptions


@dataclass(frozen=True)
class SingleOptions(StrategyOptions):
    """Options of ``single``."""

    strategy = StrategyEntry(
        name="single",
        help="The model on one device: the reference.",
        layout="dpexp.strategies.single:Single",
        examples=("--devices cpu --steps 500", "--model cnn --data digits --epochs 2"),
        order=10,
    )

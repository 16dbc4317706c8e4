"""The options of ``functional``."""

from dataclasses import dataclass

from dpexp.config.strategy_options import DataParallelOptions, StrategyEntry


@dataclass(frozen=True)
class FunctionalOptions(DataParallelOptions):
    """Options of ``functional``."""

    strategy = StrategyEntry(
        name="functional",
        help="data_parallel(module, inputs, devices), composed of the four primitives.",
        layout="dpexp.strategies.replicas.functional:Functional",
        examples=("--virtual 3", "--virtual 2 --model mlp --data digits"),
        order=40,
    )
    copies_to_all = True

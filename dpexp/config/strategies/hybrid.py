"""The options of ``hybrid``."""

from dataclasses import dataclass

from dpexp.config.options import option
from dpexp.config.strategy_options import RankOptions, StrategyEntry


@dataclass(frozen=True)
class HybridOptions(RankOptions):
    """Options of ``hybrid``."""

    strategy = StrategyEntry(
        name="hybrid",
        help="Named submodules stay on the host, the rest goes to the accelerators.",
        layout="dpexp.strategies.hybrid.hybrid:Hybrid",
        model="embedding",
        examples=("--virtual 1 --sparse", "--virtual 1 --data text:README.md --lr 1"),
        order=50,
    )

    emulated = 1

    host: tuple[str, ...] = option(
        ("embedding",), "Submodule that stays on the host, a name or pattern; repeat for several."
    )
    sparse: bool = option(
        False,
        "Sparse gradients for the host's embeddings: only the rows of the batch are transferred.",
        flag="--sparse/--dense",
    )
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds some rows of the embeddings, instead of all.",
        flag="--shard-embedding/--whole-embedding",
    )

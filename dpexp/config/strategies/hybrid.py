"""The options of ``hybrid``."""

from dataclasses import dataclass
from typing import Annotated

from dpexp.config.errors import ConfigError
from dpexp.config.options import SPEC, option
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
    pipeline: bool = option(
        False,
        "Look up the next batch while the accelerator computes this one; needs --sparse.",
        flag="--pipeline/--serial",
    )
    lookahead: int = option(1, "With --pipeline: batches that are looked up ahead.", min=1, max=1024)
    shard_embedding: bool = option(
        False,
        "Under torchrun: each rank holds a part of the embeddings, instead of all.",
        flag="--shard-embedding/--whole-embedding",
    )
    shard_by: str = option(
        "auto",
        "What each rank holds of sharded embeddings: some rows, tables or columns; auto chooses by size.",
        choices=("auto", "row", "table", "column"),
    )
    table_file: Annotated[str, SPEC] = option(
        "",
        "Keep the host's embeddings in files of this folder, mapped into memory: they may be larger than it.",
        metavar="DIR",
        empty=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table_file and self.shard_embedding:
            raise ConfigError(
                f"--table-file {self.table_file} keeps tables out of memory, and --shard-embedding copies "
                "them: give one of the two"
            )

    @property
    def looks_ahead(self) -> bool:
        return self.pipeline

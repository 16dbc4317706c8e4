"""Embedding tables split over ranks: a single device's results, and bytes by a rank's own ids."""

from typing import Any

import pytest
import sharded_in_ranks
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_ranks import in_ranks
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.distributed.process_group import ProcessGroup
from dpexp.distributed.world import Member
from dpexp.engine.prepare import prepare
from dpexp.strategies.hybrid.table_shards import UNEVEN, check_shardable, plan_shards

HELPER = sharded_in_ranks.__file__
SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=9)


TRAINED = (
    "row dense adamw:weight_decay=0.1",
    "row sparse rowwise_adagrad",
    "table sparse adam",
    "table dense rowwise_adagrad",
    "column sparse adagrad",
    "column dense momentum",
    "auto sparse sgd",
    "auto dense rowwise_adagrad",
)
"""How tables are split, their gradients, the optimizer."""


@pytest.mark.parametrize("ranks", [3, 8])
def test_shards_train_as_a_single_device_and_send_what_a_rank_asks_for(ranks: int) -> None:
    """Three ranks train with every split and kind of optimizer; eight only look up."""
    trained = [f"trained:{case}" for case in TRAINED if ranks == 3]
    found = in_ranks(ranks, HELPER, *trained, *(f"lookup:{by}" for by in ("row", "table", "column")))
    for case in trained:
        for passed, gradient_error, trained_error in found.pop(case):
            assert (passed, gradient_error < 1e-12, trained_error < 1e-12) == (True, True, True), case
    for case, of_rank in found.items():
        by = case.removeprefix("lookup:")
        asked = [row["ids"] for row in of_rank]
        assert asked == [10, 320, *[10] * (ranks - 2)]
        for count, row in zip(asked, of_rank, strict=True):
            copies = ranks if by == "column" else 1  # every rank has some columns of each row
            _, ids, vectors, gradients = row["sent"]
            _, _, vectors_back, gradients_back = row["received"]
            assert (ids, vectors_back, gradients) == (8 * count * copies, 32 * count, 32 * count), by
            assert gradients_back == vectors
        assert sum(row["sent"][2] for row in of_rank) == 32 * sum(asked)


@given(SHAPES, st.integers(1, 9), st.sampled_from(["auto", "row", "table", "column"]), st.booleans())
def test_every_number_of_a_table_has_one_rank(
    shapes: list[tuple[int, int]], ranks: int, by: str, columns: bool
) -> None:
    tables = [nn.Embedding(*shape).weight for shape in shapes]
    plan = plan_shards(tables, ranks, by, columns=columns)
    assert plan.keys() == set(tables)
    for table, shards in plan.items():
        owners = torch.zeros(table.shape, dtype=torch.long)
        for shard in shards:
            owners[shard.rows.start : shard.rows.stop, shard.columns.start : shard.columns.stop] += 1
        assert len(shards) == ranks
        assert (owners == 1).all()
        by_column = any(len(shard.columns) < table.shape[1] for shard in shards)
        assert not by_column or by == "column" or (columns and by == "auto")


@given(st.lists(st.integers(10, 10_000), min_size=1, max_size=30), st.integers(1, 9))
def test_auto_gives_no_rank_much_more_than_its_share(rows: list[int], ranks: int) -> None:
    """But for the uneven rows of a split table, of which a rank has at most one more."""
    tables = [nn.Embedding(count, 4).weight for count in rows]
    plan = plan_shards(tables, ranks, "auto")
    loads = [sum(len(shards[rank].rows) for shards in plan.values()) for rank in range(ranks)]
    split = sum(all(len(shard.rows) < len(table) for shard in plan[table]) for table in tables)
    assert max(loads) <= UNEVEN * sum(rows) / ranks + max(rows) / ranks + split


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(100, 8)] * 4, ["the whole table", "no rows"]),
        ([(1000, 8), (2, 8)], ["rows 0 to 499", "rows 500 to 999"]),
        ([(4, 64)], ["columns 0 to 31", "columns 32 to 63"]),
    ],
)
def test_auto_splits_by_size(shapes: list[tuple[int, int]], expected: list[str]) -> None:
    tables = [nn.Embedding(*shape).weight for shape in shapes]
    first = plan_shards(tables, 2, "auto")[tables[0]]
    assert [shard.of(shapes[0]) for shard in first] == expected


class Scaled(nn.Embedding):
    """Computes more than a lookup."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 8


def test_a_table_with_a_forward_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="Scaled\\(5, 2\\) in here computes more than a lookup"):
        check_shardable(nn.Sequential(nn.Embedding(5, 2), Scaled(5, 2)), "here")


class TwoRanks(ProcessGroup):
    """A group of which only the size is asked."""

    size, members = 2, (Member(0, "a"), Member(1, "b"))


@pytest.mark.parametrize(
    ("options", "optimizer", "message"),
    [
        ({"shard_by": "row"}, "sgd", "--shard-by row needs --shard-embedding"),
        (
            {"shard_embedding": True, "shard_by": "column"},
            "rowwise_adagrad:eps=1e-8",
            "--shard-by column: --optimizer rowwise_adagrad:eps=1e-8 takes the mean of a row's gradient",
        ),
    ],
)
def test_what_cannot_be_sharded_is_refused(options: dict[str, Any], optimizer: str, message: str) -> None:
    config = RunConfig("hybrid", options=options, optimizer=optimizer)
    with pytest.raises(ConfigError, match=message):
        prepare(config, group=TwoRanks())

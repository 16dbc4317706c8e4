"""Embedding tables split over ranks: a single device's results, and bytes by a rank's own ids."""

import pytest
import sharded_in_ranks
import torch
from in_ranks import in_ranks
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.strategies.row_shards import check_shardable

HELPER = sharded_in_ranks.__file__
TRAINED = (
    "dense adamw:weight_decay=0.1",
    "sparse adam",
    "dense adagrad",
    "sparse adagrad",
    "dense momentum",
    "sparse sgd",
)
"""The gradients of tables, and the optimizer."""


@pytest.mark.parametrize("case", TRAINED)
def test_shards_train_as_a_single_device(case: str) -> None:
    (by_rank,) = in_ranks(2, HELPER, f"trained:{case}").values()
    for passed, gradient_error, trained_error in by_rank:
        assert (passed, gradient_error < 1e-12, trained_error < 1e-12) == (True, True, True)


def test_a_lookup_sends_what_a_rank_asks_for() -> None:
    (by_rank,) = in_ranks(2, HELPER, "lookup").values()
    assert [row["ids"] for row in by_rank] == [10, 320]
    for row in by_rank:
        _, ids, vectors, gradients = row["sent"]
        _, _, vectors_back, gradients_back = row["received"]
        assert (ids, vectors_back, gradients) == (8 * row["ids"], 32 * row["ids"], 32 * row["ids"])
        assert gradients_back == vectors
    assert sum(row["sent"][2] for row in by_rank) == 32 * 330


class Scaled(nn.Embedding):
    """Computes more than a lookup."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 8


def test_a_table_with_a_forward_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="Scaled\\(5, 2\\) in here computes more than a lookup"):
        check_shardable(nn.Sequential(nn.Embedding(5, 2), Scaled(5, 2)), "here")

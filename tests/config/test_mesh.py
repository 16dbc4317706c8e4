"""The mesh of ranks: read once from its text, with the dimensions that split rows."""

import pytest
import torch

from dpexp.config.errors import ConfigError
from dpexp.config.mesh import Dimension, Mesh
from dpexp.config.strategy_options import CustomOptions


@pytest.mark.parametrize("mesh", ["dp", "dp=0", "dp=2,dp=2", "=2", "dp=two", "dp=2;tp=2"])
def test_a_mesh_that_cannot_be_read_is_refused(mesh: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=SIZE"):
        CustomOptions(layout="a:b", mesh=mesh)


def test_dimensions_named_dp_split_the_rows() -> None:
    options = CustomOptions(layout="a:b", mesh="dp_replicate=2,tp=2,dp_shard=3")
    assert options.launched_ranks == 12
    mesh = options.mesh_of(12)
    assert [mesh.dp_rank(rank) for rank in range(12)] == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert mesh.dp_size == 6
    assert mesh.ranks_by_dp_rank == ((0, 3), (1, 4), (2, 5), (6, 9), (7, 10), (8, 11))
    with pytest.raises(ConfigError, match="has 12 ranks, and 4 run"):
        options.mesh_of(4)


def test_ranks_in_another_order_have_the_rows_of_their_coordinates() -> None:
    ranks = torch.tensor([[[5, 0], [1, 4]], [[2, 7], [6, 3]]])
    mesh = Mesh(
        (Dimension("tp", 2), Dimension("dp", 2), Dimension("dp_shard", 2)), tuple(ranks.flatten().tolist())
    )
    for part, together in enumerate(mesh.ranks_by_dp_rank):
        assert together == tuple(sorted(ranks[:, part // 2, part % 2].tolist()))

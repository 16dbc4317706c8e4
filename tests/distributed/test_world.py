"""The world of a rank, from torchrun's environment variables."""

from collections.abc import Mapping

import pytest

from dpexp.config.errors import ConfigError
from dpexp.distributed.world import World, restarts_left

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MASTER_ADDR": ""}, "not MASTER_ADDR"),
        ({"RANK": "2"}, "does not add up: RANK=2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3"),
        ({"RANK": "first"}, "RANK='first'"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(changes: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World.of(TORCHRUN | changes)


def test_a_world_is_read_from_the_environment() -> None:
    world = World.of(TORCHRUN)
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, 2, 1, 2)
    assert World.of({}) is None


@pytest.mark.parametrize(("size", "attempt"), [("2", 3), ("4", 0)])
def test_restarts_count_where_all_ranks_have_one_agent(size: str, attempt: int) -> None:
    world = World.of(TORCHRUN | {"WORLD_SIZE": size, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert world is not None
    assert world.attempt == attempt


@pytest.mark.parametrize(("most", "done", "left"), [("3", "0", 3), ("3", "3", 0), ("", "", 0)])
def test_the_restarts_that_are_left_are_read_from_the_environment(most: str, done: str, left: int) -> None:
    environ = {"TORCHELASTIC_MAX_RESTARTS": most, "TORCHELASTIC_RESTART_COUNT": done}
    assert restarts_left(environ) == left

"""The world of a rank, from torchrun's environment variables."""

from collections.abc import Mapping

import pytest

from dpexp.config.errors import ConfigError
from dpexp.distributed.world import World

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "1",
}


def set_all(monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str]) -> None:
    for name, value in (TORCHRUN | changes).items():
        monkeypatch.setenv(name, value)


def test_a_world_that_lacks_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"MASTER_ADDR": ""})
    with pytest.raises(ConfigError, match="not MASTER_ADDR"):
        World.of()


@pytest.mark.parametrize(("size", "attempt"), [("2", 1), ("4", 0)])
def test_a_world_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, size: str, attempt: int
) -> None:
    """Restarts count where all ranks have one agent."""
    assert World.of() is None
    set_all(monkeypatch, {"WORLD_SIZE": size})
    world = World.of()
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size) == (1, int(size), 1, 2)
    assert world.attempt == attempt

"""Ranks: build a run in every rank of its world, which agree on what it is."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.distributed.devices import DeviceRequest
from dpexp.distributed.group import ProcessGroup, RankError, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import prepare
from dpexp.engine.prepared import Prepared
from dpexp.record.files import check_writable


def prepare_ranks(config: RunConfig, objects: Mapping[str, Any] | None, world: World | None) -> Prepared:
    """``prepare`` in every rank of the world, or here without one; an error in one rank ends all of them.

    Raises ConfigError, LostContact; JournalError in the first rank, which cannot record.
    """
    group = _group_of(config, world)
    error: BaseException
    try:
        prepared, facts = group.together(lambda: _prepared(config, objects, world, group))
        group.check_alike(facts)
        return prepared
    except RankError as failed:
        error = failed.__cause__ or ConfigError(f"{group.members[failed.rank]}: {failed.kind}: {failed.text}")
    except ConfigError as differs:
        error = differs
    with suppress(RuntimeError):  # a rank was killed meanwhile
        group.destroy()
    raise error


def _prepared(
    config: RunConfig, objects: Mapping[str, Any] | None, world: World | None, group: ProcessGroup
) -> tuple[Prepared, dict[str, str]]:
    """What this rank builds, and what must be the same on every rank."""
    prepared = prepare(config, objects, group=group)
    facts = {
        "config": config.digest(),
        "data": prepared.data.digest if world else "",
        "model": str([(name, tensor.shape) for name, tensor in prepared.model.state_dict().items()]),
    }
    if group.is_first:
        check_writable(home() / "runs")
    return prepared, facts


def _group_of(config: RunConfig, world: World | None) -> ProcessGroup:
    """The process group of the ranks of the world. Raises ConfigError, LostContact."""
    used = DeviceRequest(config.devices, config.virtual, config.options).of_rank(world).used
    options = config.options if isinstance(config.options, RankOptions) else None
    return init_process_group(world, options, used[0] if used else devices.HOST)

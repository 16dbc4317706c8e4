"""Prepare ranks: build a run in every rank of its world, and agree on what it is, and on its id."""

import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dpexp import devices
from dpexp.config.errors import ConfigError
from dpexp.config.options import option_fields, to_json
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, options_with_role
from dpexp.distributed.device_assignment import assign_device
from dpexp.distributed.launch import LAUNCH
from dpexp.distributed.process_group import ProcessGroup
from dpexp.distributed.signals import Terminated
from dpexp.distributed.torch_process_group import init_process_group
from dpexp.distributed.world import World
from dpexp.engine.prepare import Prepared, prepare
from dpexp.record.journal.durable import check_writable
from dpexp.record.record import new_run_id
from dpexp.record.runs.index import UnknownRunError, find
from dpexp.training.snapshot_file import State
from dpexp.training.snapshots import Snapshots


def prepare_ranks(config: RunConfig, world: World | None) -> Prepared:
    """``prepare`` in every rank of the world; an error in one rank ends all of them.

    Raises ConfigError, LostContact; JournalError in the first rank, which cannot record.
    """
    group = _group_of(config, world)
    prepared, error, facts = None, None, {}
    try:
        prepared = prepare(config, group=group)
        facts = {
            "config": config.digest(),
            "data": prepared.data.digest if world else "",
            "order of the samples": prepared.data.drawn(config.seed) if world else "",
            "model": str([(name, tensor.shape) for name, tensor in prepared.model.state_dict().items()]),
        }
        if group.is_first:
            check_writable(home() / "runs")
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as raised:
        error = raised
    group.check_agreement(error, facts)
    assert prepared is not None
    return _with_run_id(prepared)


def refuse_ranks(config: RunConfig, world: World) -> None:
    """Report to the ranks of hosts that join now, and wait for the ranks of this one, that the run has ended.

    Every rank of this host calls it. Raises LostContact where the others do not come.
    """
    with suppress(ConfigError):
        _group_of(config, world).check_agreement(ConfigError("the run has ended"), {})


def _group_of(config: RunConfig, world: World | None) -> ProcessGroup:
    """The process group of the ranks of the world. Raises ConfigError, LostContact."""
    used = assign_device(config, world).used
    options = config.options.rank_options
    return init_process_group(world, options, used[0] if used else devices.HOST)


def _with_run_id(prepared: Prepared) -> Prepared:
    """The run with the id of all ranks and its snapshots; restarted ranks resume their run."""
    group, options, error, run_id = prepared.group, prepared.config.options, None, ""
    try:
        if options.resume and group.is_first:
            run_id = find(home() / "runs", options.resume).name
    except UnknownRunError as raised:
        error = ConfigError(f"--resume: {raised}")
    group.check_agreement(error, {})
    run_id = group.broadcast(0, run_id) or (_agreed_run_id(group) if group.members else new_run_id())
    snapshots = Snapshots(home() / "snapshots" / run_id, group)
    has_journal = any(group.all_gather((home() / "runs" / run_id).exists()))
    if options.resume:
        group.check_agreement(_resume_error(snapshots.newest(), prepared, snapshots), {})
    kept = snapshots if options.has_snapshots else None
    return replace(prepared, run_id=run_id, resumes=has_journal, snapshots=kept)


def _resume_error(state: State | None, prepared: Prepared, snapshots: Snapshots) -> ConfigError | None:
    """Why this run cannot resume from the state, the same in every rank."""
    run_id = snapshots.folder.name
    if state is None:
        why = "has no snapshot that can be read; a run that has finished keeps none"
        return ConfigError(f"--resume {run_id}: {snapshots.folder} {why}")
    try:
        check_same_computation(state["config"], prepared.config, run_id)
        _check_same_data(state.get("data"), prepared, run_id)
    except ConfigError as error:
        return error
    return None


def _agreed_run_id(group: ProcessGroup) -> str:
    """The run id of all ranks: the first proposed of which some host has a journal or a snapshot."""
    proposed: list[str] = list(dict.fromkeys(group.all_gather(_proposed_run_id())))
    folders = (home() / "runs", home() / "snapshots")
    known = [run_id for run_id in proposed if any((folder / run_id).exists() for folder in folders)]
    known_anywhere = set().union(*group.all_gather(known))
    return next((run_id for run_id in proposed if run_id in known_anywhere), proposed[0])


def _proposed_run_id() -> str:
    """The run id that this rank proposes: the same after a restart by the same torchrun agent."""
    import psutil

    agent = os.getppid()
    identity = [os.uname().nodename, agent, psutil.Process(agent).create_time()]
    identity += [os.environ.get(name) for name in (LAUNCH, "TORCHELASTIC_RUN_ID")]
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]


def _check_same_data(digest: str | None, prepared: Prepared, run_id: str) -> None:
    """Raises ConfigError where a resumed run has other samples than before; old ones have no digest."""
    found = prepared.data.digest
    if digest is not None and digest != found:
        raise ConfigError(
            f"--resume {run_id}: the samples of --data {prepared.config.data} have changed since the run "
            f"began (SHA-256 {digest[:12]}… then, {found[:12]}… now): restore them, or begin another run"
        )


def check_same_computation(saved: dict[str, Any], config: RunConfig, run_id: str) -> None:
    """Raises ConfigError where the options of a resumed run compute something else than before.

    A run that is older than an option computed as the option's default does.
    """
    fields = [field for part in (config, config.options) for field in option_fields(type(part))]
    defaults = {field.name: to_json(field.default) for field in fields}
    before, now = defaults | saved, defaults | config.to_dict()
    may_differ = options_with_role("control", "delivery", "label")
    for name in sorted(set(before) | set(now)):
        if name not in may_differ and before.get(name) != now.get(name):
            raise ConfigError(
                f"--resume {run_id}: the run started with {name} {before.get(name)!r}, found "
                f"{now.get(name)!r}: give the same value"
            )

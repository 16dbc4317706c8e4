"""Program: what a Record says of the program of a watched loop, and of where its model is laid out."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import distributed, nn

from dpexp import tensors
from dpexp.config.errors import as_config_error
from dpexp.config.run_config import RunConfig, config_digest
from dpexp.config.words import shown
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.world import World
from dpexp.engine.facts import environment, git
from dpexp.engine.observations import labels, merged_device_map
from dpexp.engine.torch_facts import torch_environment
from dpexp.measurement.observe import device_map
from dpexp.record.journal import WATCH_STRATEGY, now
from dpexp.record.record import Row
from dpexp.record.redact import redact_values
from dpexp.strategies.placed import Placed
from dpexp.verification.result import entry
from dpexp.watch.calls import Call

NOT_VERIFIED = entry(
    "not verified: no step was compared", dtype="", steps=0, tolerance=None, worst=None, cause=""
)


def config_of(model: nn.Module, name: str | None, options: Mapping[str, Any]) -> Row:
    """The flat config of a watched loop, with the options of a run that say where it is kept.

    Raises ConfigError for a name that a store does not hold, and a time-out that is not a number.
    """
    given: Row = {"run_name": name or "", "experiment": os.environ.get("DPEXP_EXPERIMENT") or "dpexp"}
    if timeout := os.environ.get("DPEXP_TRACK_TIMEOUT"):
        with as_config_error("DPEXP_TRACK_TIMEOUT"):
            given["track_timeout"] = float(timeout)
    run = RunConfig("single", **given).to_dict()
    filing = {key: run[key] for key in ("experiment", "run_name", "track", "track_timeout")}
    return {"strategy": WATCH_STRATEGY, "model": type(model).__name__} | plain(options) | filing


def plain(options: Mapping[str, Any]) -> Row:
    """Options as JSON, without credentials: a function, a class or an object by its name."""

    def of(value: Any) -> Any:
        if value is None or isinstance(value, str | int | float):
            return value
        return getattr(value, "__name__", type(value).__name__) if callable(value) else shown(value)

    return redact_values({key: of(value) for key, value in options.items()})


def rank() -> int:
    """The rank of this process; 0 of one that is alone."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    world = World.of()
    return world.rank if world is not None else 0


def facts_of(config: Row) -> Row:
    """The keys of a Record that are known before the loop; ``git`` is that of the program."""
    program = Path(sys.argv[0] if sys.argv else "").resolve()
    code = git(program.parent if program.is_file() else Path.cwd())
    return {
        "name": config["run_name"] or f"{WATCH_STRATEGY}-{config['model']}",
        "experiment": config["experiment"],
        "strategy": WATCH_STRATEGY,
        "status": "running",
        "started": now(),
        "config": config,
        "config_digest": config_digest(config),
        "environment": environment() | torch_environment() | {"git": code},
        "verification": NOT_VERIFIED,
    }


def laid_out(model: nn.Module, group: ProcessGroup, wrapper: str, replicas: Sequence[str]) -> Row:
    """``devices``, ``device_map`` and ``execution`` of a Record; every rank must call this.

    A rank on the host computes on ``cpu:RANK``, an emulated device, as those of ``ddp`` do. Ranks on the host
    are real, as one process is; a DataParallel without replicas is ``passthrough``.
    """
    rows = [{**row, "replicas": [*replicas]} for row in device_map(Placed(model))]
    used = list(dict.fromkeys(row["device"] for row in rows)) or ["cpu"]
    if not group.members:
        is_virtual = any(name.startswith("cpu:") for name in (*used, *replicas))
        is_alone = wrapper == "whole" and {*used, *replicas} == {"cpu"}
        return {
            "execution": "virtual" if is_virtual else "passthrough" if is_alone else "real",
            "devices": {"requested": [], "used": [*used, *replicas], "output": used[0]},
            "device_map": rows,
        }
    own = next((name for name in used if name != "cpu"), f"cpu:{group.rank}")
    names = labels(group.all_gather(own), group.members)
    with_host = [name for name in used if name == "cpu" and own.partition(":")[0] != "cpu"]
    ranks = [
        {"rank": member.rank, "host": member.host, "device": name}
        for member, name in zip(group.members, names, strict=True)
    ]
    return {
        "execution": "real",
        "devices": {"requested": [], "used": with_host + names, "output": names[0], "ranks": ranks},
        "device_map": merged_device_map(group.all_gather(on_device(rows, own)), names),
    }


def on_device(rows: list[Row], device: str) -> list[Row]:
    """The rows of a rank; one on the host has them on the device that is emulated there."""
    return [{**row, "device": device} for row in rows] if device.startswith("cpu:") else rows


def shapes(calls: Sequence[Call]) -> list[Row]:
    """``shapes`` of a Record: the calls on one device are those of one batch after the other."""
    used = list(dict.fromkeys(call.device for call in calls if call.is_replica))
    before: Counter[str] = Counter()
    rows = []
    for call in calls:
        rows.append(
            {
                "batch": before[call.device],
                "scope": "replica" if call.is_replica else "outside",
                "module": "",
                "replica": used.index(call.device) if call.is_replica else None,
                "device": call.device,
                "inputs": tensors.shapes(call.inputs),
                "outputs": tensors.shapes(call.leaves),
            }
        )
        before[call.device] += 1
    return sorted(rows, key=lambda row: (row["batch"], row["replica"] or 0))

"""Observations: facts of a Record about a run before it starts, and about its placed model on all ranks."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from dpexp import devices
from dpexp.config.run_config import RunConfig, config_digest
from dpexp.data.dataset import even_rows
from dpexp.distributed.world import Member
from dpexp.engine.facts import environment
from dpexp.engine.prepared import Prepared
from dpexp.engine.references import directory, file_hashes, references
from dpexp.engine.torch_facts import object_hashes, torch_environment
from dpexp.measurement.observe import device_map, observe, observed_batches
from dpexp.record.journal import now
from dpexp.record.record import Row
from dpexp.record.redact import redact_values
from dpexp.strategies.placed import Placed
from dpexp.training.optimizers import Optimizers

_T = TypeVar("_T")


def run_facts(config: RunConfig, prepared: Prepared) -> Row:
    """The keys of a Record that are known before the run starts."""
    data = prepared.data
    named = references(config, prepared.factories)
    recorded = redact_values(config.to_dict() | {"batch_size": prepared.batch_size})
    samples, rows = data.epochs.samples, prepared.batch_rows
    is_even = [*rows.items()] == [*even_rows(samples, prepared.batch_size).items()]
    files = file_hashes(named)
    return {
        "name": prepared.name,
        "experiment": recorded["experiment"],
        "strategy": config.strategy,
        "execution": prepared.execution,
        "status": "running",
        "started": now(),
        "config": recorded,
        "config_digest": config_digest(recorded),
        "files": files + object_hashes(named, data.digest),
        "environment": environment() | torch_environment() | directory(files),
        "data": {
            "name": data.name,
            "samples": samples,
            **({} if is_even else {"batches": prepared.batches_per_epoch}),
            "description": data.description,
            "sha256": data.digest,
        },
    }


class Observations:
    """What the ranks of a process group, or this one process, observe of a placed model."""

    def __init__(self, prepared: Prepared, placed: Placed) -> None:
        self._prepared = prepared
        self._placed = placed
        self._names: list[str] = []  # the device of every rank
        group, used = prepared.group, prepared.selection.used or (devices.HOST,)
        if group.members:
            self._names = labels(group.all_gather(devices.label(used[0])), group.members)

    def _merged(self, merge_ranks: Callable[[list[_T], list[str]], _T], value: _T) -> _T:
        """The values of all ranks as one, if there is a process group."""
        return merge_ranks(self._prepared.group.all_gather(value), self._names) if self._names else value

    def device_facts(self) -> Row:
        """``devices`` of a Record: requested, used, where outputs are, and ``ranks`` of a process group."""
        used = [devices.label(device) for device in self._placed.devices]
        facts: Row = {
            "requested": list(self._prepared.selection.requested),
            "used": used,
            "output": devices.label(self._placed.output_device),
        }
        if self._names:
            facts["used"] = [name for name in used if name == "cpu"] + self._names
            facts["output"] = self._names[0]
            facts["ranks"] = [
                {"rank": member.rank, "host": member.host, "device": name}
                for member, name in zip(self._prepared.group.members, self._names, strict=True)
            ]
        return facts

    def device_map(self, optimizers: Optimizers | None = None) -> list[Row]:
        """``device_map`` of a Record: see ``observe.device_map``."""
        states = optimizers.states() if optimizers is not None else ()
        return self._merged(merged_device_map, device_map(self._placed, states))

    def shapes(self) -> list[Row]:
        """``shapes`` of a Record: see ``observe.observe``."""
        prepared, numbers = self._prepared, observed_batches(self._prepared.batches_per_epoch)
        first, *others = islice(prepared.batches(0), len(numbers))
        others[-1:] = map(prepared.as_last, others[-1:])
        gradients = prepared.strategy.trains and not self._names
        with devices.autocast(self._placed.output_device, prepared.autocast):
            batches, loss = map(prepared.part, (first, *others)), prepared.data.objective.loss
            rows = observe(self._placed, batches, loss, numbers, gradients=gradients)
        return self._merged(merged_shapes, rows)

    def timeline(self, rows: list[Row]) -> list[Row]:
        """``timeline`` of a Record from the rows of the ranks' timers."""
        return self._merged(_merged_timeline, rows)

    def memory(self) -> dict[str, int]:
        """``memory`` of a Record: peak bytes by device."""
        return self._merged(_merged_memory, devices.peak_memory(self._placed.devices))

    def memory_use(self, rows: list[Row]) -> list[Row]:
        """``memory_use`` of a Record from the rows of this process: those of every rank, with its number."""
        return self._merged(_merged_memory_use, rows)

    def work(self, row: Row) -> Row:
        """``work`` of a Record from that of this process: the FLOPs and tokens of all ranks."""
        group = self._prepared.group
        tokens = group.one_of_each_dp_rank(group.all_gather(row.pop("tokens", None)))
        counted = {"tokens": sum(tokens)} if None not in tokens else {}
        return self._merged(_merged_work, row) | counted


# --- the observations of all ranks as one: ``names`` are the devices of the ranks, a rank is a replica ---


def labels(names: Sequence[str], members: Sequence[Member]) -> list[str]:
    """The names of the ranks' devices, with ``@host`` where several hosts have a device of that name."""
    return [
        f"{name}@{member.host}" if names.count(name) > 1 else name
        for name, member in zip(names, members, strict=True)
    ]


def merged_shapes(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """Every rank's rows as those of a replica, by batch, module and rank."""
    order = {row["module"]: index for rows in reversed(by_rank) for index, row in enumerate(rows)}
    merged = [
        {**_renamed(row, names[rank]), "scope": "replica", "replica": rank}
        for rank, rows in enumerate(by_rank)
        for row in rows
    ]
    return sorted(merged, key=lambda row: (row["batch"], order[row["module"]], row["replica"]))


def merged_device_map(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """A tensor that every rank has is one row with replicas; a sharded one is a row for each rank."""
    tensors: dict[tuple[str, str], list[Row]] = {}
    for rank, (rows, name) in enumerate(zip(by_rank, names, strict=True)):
        for row in rows:
            of_rank = {**_renamed(row, name), "rank": rank}
            tensors.setdefault((row["module"], row["parameter"]), []).append(of_rank)
    merged = []
    for rows in tensors.values():
        if any(row.get("placement") for row in rows):
            merged += rows
        else:
            first = {key: value for key, value in rows[0].items() if key != "rank"}
            merged.append({**first, "replicas": [row["device"] for row in rows[1:]]})
    return merged


def _merged_timeline(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    """The first rank's rows, and every rank's as its replica's; steps start where the first rank's do."""
    starts = [{row["step"]: row["start_us"] for row in rows if row["phase"] == "step"} for rows in by_rank]
    merged = [_renamed(row, names[0]) for row in by_rank[0]]
    for rank, rows in enumerate(by_rank):
        for row in rows:
            if row["phase"] == "step":
                continue
            shift = starts[0][row["step"]] - starts[rank][row["step"]]
            times = {key: round(row[key] + shift, 3) for key in ("start_us", "end_us")}
            merged.append({**_renamed(row, names[rank]), "replica": rank, **times})
    return merged


def _merged_memory(by_rank: Sequence[dict[str, int]], names: Sequence[str]) -> dict[str, int]:
    """Peak bytes by rank: of its device, which comes last, or of the process where that is a CPU."""
    return {name: [*peaks.values()][-1] for name, peaks in zip(names, by_rank, strict=True)}


def _merged_memory_use(by_rank: Sequence[list[Row]], names: Sequence[str]) -> list[Row]:
    return [
        {**_renamed(row, name), "rank": rank}
        for rank, (rows, name) in enumerate(zip(by_rank, names, strict=True))
        for row in rows
    ]


def _merged_work(by_rank: Sequence[Row], names: Sequence[str]) -> Row:
    """The sum over ranks, or what some could not count, or the first note of one that was not observed."""
    if notes := [row for row in by_rank if "note" in row]:
        return notes[0]
    if uncounted := {name for row in by_rank for name in row.get("uncounted", ())}:
        return {"rows": by_rank[0]["rows"], "flops": {}, "uncounted": sorted(uncounted)}
    flops = {name: sum(row["flops"][name] for row in by_rank) for name in by_rank[0]["flops"]}
    return {"rows": by_rank[0]["rows"], "flops": flops}


def _renamed(row: Row, name: str) -> Row:
    """The row with the name of its rank's device; the host is ``cpu`` on every rank."""
    return row if row["device"] == "cpu" else {**row, "device": name}

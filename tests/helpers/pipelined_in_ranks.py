"""Cases of ``in_ranks``: sharded tables trained serially and pipelined, on the same batches; the bytes sent.

Each case asserts on every rank that losses, weights and the input of every dense part have the same bits.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.distributed.process_group import ProcessGroup
from dpexp.engine.prepare import Prepared, prepare
from dpexp.engine.verify import verify
from dpexp.strategies.hybrid import sharded_embedding
from dpexp.strategies.hybrid.sharded_look_ahead import ShardedLookAhead
from dpexp.timing import Timer
from dpexp.training.trainer import Trainer

ROWS, DIM = 24, 4
FIRST = 2  # the first step learns which lookups there are, and the second had begun before
MANY = f"{Path(__file__).with_name('sharded_in_ranks.py')}:Net"
ONE = f"embedding:rows={ROWS},dim={DIM}"
STEPS = {2: 48, 3: 24}
"""Steps on each stream, by the number of ranks."""
STREAMS = {
    "every id the same": ({"shard_by": "row"}, lambda rng, _: torch.full((6,), 3)),
    "power law": (
        {"shard_by": "row", "optimizer": "rowwise_adagrad", "lookahead": 2},
        lambda rng, _: (ROWS * torch.rand(6, generator=rng) ** 4).long(),
    ),
    "alternating": (
        {"shard_by": "column", "optimizer": "adam"},
        lambda rng, number: torch.arange(6) + 6 * (number % 2),
    ),
}
TABLES: dict[str, dict[str, Any]] = {
    "rows": {"shard_by": "row", "optimizer": "adagrad", "clip_norm": 0.05, "lookahead": 3},
    "tables": {"shard_by": "table", "optimizer": "adam", "accumulate": 3, "lookahead": 2},
    "columns": {"shard_by": "column", "optimizer": "sgd"},
    "auto": {"optimizer": "rowwise_adagrad"},
    "eval": {"eval": True},
    "26 tables": {"model": "dlrm:tables=26,rows=30,dim=4,fused=False", "data": "random:samples=20"},
}


def trainer(group: ProcessGroup, **values: Any) -> Trainer:
    return prepared_trainer(group, **values)[1]


def prepared_trainer(group: ProcessGroup, **values: Any) -> tuple[Prepared, Trainer]:
    common = {"strategy": "hybrid", "sparse": True, "shard_embedding": True, "threads": 1, "warmup": 0}
    prepared = prepare(RunConfig.from_dict(common | values), group=group)
    used = prepared.selection.used
    return prepared, prepared.trainer(prepared.strategy.place(prepared.model, used, Timer(used)))


def ahead_of(steps: Trainer) -> ShardedLookAhead:
    found = steps.placed.prefetch
    assert isinstance(found, ShardedLookAhead)
    return found


@dataclass
class Run:
    """What a trainer computes of batches: losses, and the inputs of its dense part."""

    steps: Trainer
    losses: list[float] = field(default_factory=list)
    used: list[torch.Tensor] = field(default_factory=list)

    def train(self, batches: Sequence[Batch], limit: int = 10**9) -> Run:
        dense = next(each for each in self.steps.placed.module.modules() if isinstance(each, nn.Linear))
        hook = dense.register_forward_pre_hook(lambda _, args: self.used.append(args[0].detach().clone()))
        with self.steps.ahead(iter(batches)) as ahead:
            for number, batch in enumerate(ahead, 1):
                self.losses.append(self.steps.step(batch).item())
                if number == limit:
                    break
        hook.remove()
        assert not [each for each in threading.enumerate() if "look-ahead" in each.name]
        return self

    def assert_same_bits(self, other: Run, case: str) -> None:
        assert self.losses == other.losses, case
        for number, (found, expected) in enumerate(zip(self.used, other.used, strict=True)):
            assert torch.equal(found, expected), f"{case}: step {number} uses stale rows"
        weights = self.steps.full_parameters()
        for name, tensor in other.steps.full_parameters().items():
            assert torch.equal(weights[name], tensor), f"{case}: {name}"


def stream(group: ProcessGroup, name: str, steps: int) -> list[Batch]:
    """The batches of a rank; each has ids of its own, but for those that are the same."""
    rng = torch.Generator().manual_seed(group.rank)
    ids = [STREAMS[name][1](rng, number) for number in range(steps)]
    return [Batch((each,), each % 10, 6, 6 * group.size) for each in ids]


# --- delays -----------------------------------------------------------------------------------------


@contextmanager
def delays(steps: Trainer, seed: int) -> Iterator[None]:
    """Every stage of this rank takes longer at times: exchanges in both threads, dense part, update."""
    rng, plain = random.Random(seed), sharded_embedding.all_to_all

    def pause(*_: Any) -> None:
        time.sleep(rng.choice((0.0, 0.0, 0.001, 0.003)))

    def exchange(*args: Any) -> torch.Tensor:
        pause()
        return plain(*args)

    dense = next(each for each in steps.placed.module.modules() if isinstance(each, nn.Linear))
    hooks = [dense.register_forward_pre_hook(pause)]
    if steps.optimizers is not None:
        member = steps.optimizers.members[-1]
        hooks += [member.register_step_pre_hook(pause), member.register_step_post_hook(pause)]
    sharded_embedding.all_to_all = exchange
    try:
        yield
    finally:
        sharded_embedding.all_to_all = plain
        for hook in hooks:
            hook.remove()


@contextmanager
def ordered(steps: Trainer, updates_first: bool) -> Iterator[None]:
    """Of a depth of 1: the update of a step is before, or after, the reads of the next batch on this rank."""
    ahead = ahead_of(steps)
    read, number = ahead._read_ahead, [FIRST]

    def read_late(batch: Batch) -> Any:
        while ahead._ended < number[0]:
            time.sleep(0.0005)
        number[0] += 1
        return read(batch)

    def update_late(*_: Any) -> None:
        wait([each.future for each in ahead._waiting if each.future is not None])

    assert steps.optimizers is not None
    with ExitStack() as stack:
        if updates_first:
            ahead._read_ahead = read_late  # type: ignore[method-assign]
            stack.callback(vars(ahead).pop, "_read_ahead")
        else:
            hook = steps.optimizers.members[-1].register_step_pre_hook(update_late)
            stack.callback(hook.remove)
        yield


@contextmanager
def ends_late(steps: Trainer, batch: Batch) -> Iterator[None]:
    """A batch is looked up when its loop has ended without it, while that waits for the lookup thread."""
    ahead = ahead_of(steps)
    read = ahead._read_ahead

    def read_late(each: Batch) -> Any:
        while each is batch and ahead._second._group is not None:
            time.sleep(0.0005)
        time.sleep(0.05 * (each is batch))
        return read(each)

    ahead._read_ahead = read_late  # type: ignore[method-assign]
    try:
        yield
    finally:
        vars(ahead).pop("_read_ahead")


# --- cases ------------------------------------------------------------------------------------------


def streams(group: ProcessGroup) -> None:
    for name, (values, _) in STREAMS.items():
        batches = stream(group, name, STEPS[group.size])
        serial = trainer(
            group, model=ONE, **{key: value for key, value in values.items() if key != "lookahead"}
        )
        pipelined = trainer(group, model=ONE, pipeline=True, **values)
        with delays(pipelined, group.rank) if group.rank == 1 else ExitStack():
            found = Run(pipelined).train(batches)
        found.assert_same_bits(Run(serial).train(batches), name)
        assert sum(group.all_gather(ahead_of(pipelined).rows_ahead)) > 0, name


def tables(group: ProcessGroup) -> None:
    """Tables of every kind; of the last batch of an epoch the last of three ranks has no rows."""
    for name, values in TABLES.items():
        if name == "26 tables" and group.size > 2:
            continue  # what they share is the same, and dear: ``fused`` counts it
        shape = {"model": MANY, "data": "random:samples=20", "batch_size": 9} | values
        shape |= {"sparse": not values.get("eval")}
        plain = {key: value for key, value in shape.items() if key != "lookahead"}
        runs = []
        for each in (plain, shape | {"pipeline": True}):
            prepared, steps = prepared_trainer(group, **each)
            run = Run(steps)
            for epoch in range(2):
                run.train(list(prepared.local_batches(epoch)))
            runs.append(run)
        serial, pipelined = runs
        pipelined.assert_same_bits(serial, name)
        assert (ahead_of(pipelined.steps).rows_again > 0) <= (not values.get("eval")), name


def resumed(group: ProcessGroup) -> None:
    """Snapshots inside the pipeline, and loops that end early, leave nothing behind."""
    batches = stream(group, "power law", 30)
    values = {"model": ONE, "optimizer": "adam", "pipeline": True, "lookahead": 3}
    first, second, serial = (
        Run(trainer(group, **values)),
        Run(trainer(group, **values)),
        Run(trainer(group, model=ONE, optimizer="adam")),
    )
    first.train(batches[:20], 12)
    state = copy.deepcopy(first.steps.state_dict())
    with ends_late(second.steps, batches[3]):
        second.train(batches[:4], 3)
    second.steps.load_state_dict(state)
    second.losses, second.used = list(first.losses), list(first.used)
    second.train(batches[12:])
    second.assert_same_bits(serial.train(batches), "resumed")


def verified(group: ProcessGroup) -> None:
    values = {"model": MANY, "shard_embedding": True, "sparse": True, "pipeline": True, "batch_size": 9}
    config = {"strategy": "hybrid", "optimizer": "adagrad", "data": "random:samples=20"} | values
    assert verify(prepare(RunConfig.from_dict(config), group=group)).passed


class Choosing(nn.Module):
    """Looks up its first ids or its second, as a batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(ROWS, DIM), nn.Linear(DIM, 10)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Any, torch.Tensor]:
        ids = torch.randint(ROWS, (2, samples), generator=generator)
        return (*ids, torch.ones(samples)), ids[0] % 10

    def forward(self, ids: torch.Tensor, others: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(self.embedding(ids if is_first[0] else others))
        return logits


def choosing(group: ProcessGroup) -> None:
    """Ids that were not looked up ahead end the run, and do not hang it."""
    ids = torch.arange(6)
    batches = [
        Batch((ids, ids + 1, torch.full((6,), float(number < 4))), ids, 6, 6 * group.size)
        for number in range(8)
    ]
    run, message = Run(trainer(group, model=f"{__file__}:Choosing", pipeline=True)), ""
    try:
        run.train(batches)
    except ConfigError as error:
        message = str(error)
    assert "looks up other ids than its batch did ahead" in message
    assert len(run.losses) == 4


def aborted(group: ProcessGroup) -> None:
    """A rank ends what its second thread waits for, though the others take no part; then all open another."""
    second, ones = group.second(600.0), [1] * group.size
    second.abort()
    second.open()
    if group.is_first:
        sent, received = torch.ones(group.size), torch.empty(group.size)
        begun: Any = distributed.all_to_all_single(received, sent, group=second.group, async_op=True)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(begun.wait)
            assert not wait([waiting], 0.1).done
            second.abort()
            assert isinstance(waiting.exception(), RuntimeError)
    group.barrier()
    second.abort()
    second.open()
    found = sharded_embedding.all_to_all(torch.full((group.size,), group.rank), ones, ones, second.group)
    assert found.tolist() == list(range(group.size))


# --- what is sent -----------------------------------------------------------------------------------


def sent(group: ProcessGroup) -> None:
    """Only changed rows are sent again, whichever rank reads late; the rest is sent as without a pipeline."""
    batches = stream(group, "power law", 12)
    by_rank = group.all_gather([each.inputs[0].unique() for each in batches])
    serial, pipelined = (trainer(group, model=ONE, shard_by="row", pipeline=on) for on in (False, True))
    plain, ahead = Sent(), Sent()
    with plain:
        Run(serial).train(batches)
    with ahead, ordered(pipelined, updates_first=group.rank == 0):
        Run(pipelined).train(batches)
    forward, backward = plain.by_kind(4)
    assert sum(ahead.second) == sum(sum(each) for each in forward[FIRST:])
    reads = ahead_of(pipelined)
    shard = next(
        each
        for each in pipelined.placed.module.modules()
        if isinstance(each, sharded_embedding.ShardedEmbedding)
    ).shard
    own = [[ids[[id in shard.rows for id in ids.tolist()]] for ids in of] for of in by_rank]
    read = sum(len(of[step]) for of in own for step in range(FIRST, len(batches)))
    changed = 0
    for step in range(FIRST, len(batches)):
        written = torch.cat([of[step - 1] for of in own])
        changed += sum(int(torch.isin(of[step], written).sum()) for of in own)
    assert reads.rows_ahead == read
    assert reads.rows_again == (0 if group.rank == 0 else changed)
    again = ahead.default[FIRST * 4 :]
    assert sum(again[0::3]) == read  # a byte each
    assert sum(again[1::3]) == 4 * DIM * reads.rows_again
    assert again[2::3] == backward[FIRST:]


def fused(group: ProcessGroup) -> None:
    """26 tables share their exchanges, but in the first two steps: three ahead, and three in the step."""
    prepared, pipelined = prepared_trainer(group, **TABLES["26 tables"], batch_size=4, pipeline=True)
    with Sent() as sent:
        Run(pipelined).train(list(prepared.local_batches(0)))
    assert (len(sent.second), len(sent.default)) == (3 * 3, FIRST * 26 * 4 + 3 * 3)


class Sent:
    """The bytes that this rank gives to each all-to-all inside, in the default group and in the second."""

    def __init__(self) -> None:
        self.default: list[int] = []
        self.second: list[int] = []
        self._plain = distributed.all_to_all_single

    def __enter__(self) -> Sent:
        def counted(out: torch.Tensor, into: torch.Tensor, *sizes: Any, group: Any) -> Any:
            (self.default if group is None else self.second).append(into.nbytes)
            return self._plain(out, into, *sizes, group=group)

        distributed.all_to_all_single = counted  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        distributed.all_to_all_single = self._plain

    def by_kind(self, calls: int) -> tuple[list[list[int]], list[int]]:
        """Of serial steps: what each sends forward, and backward."""
        steps = [self.default[start : start + calls] for start in range(0, len(self.default), calls)]
        return [each[:-1] for each in steps], [each[-1] for each in steps]


CASES = ("streams", "tables", "resumed", "verified", "choosing", "aborted", "sent", "fused")

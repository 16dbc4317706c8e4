"""A DataLoader's own choices: the samples of each batch, over replicas and ranks."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants import broken
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.data.loader_order import LoaderOrder

COUNT = 24
ROWS = TensorDataset(torch.arange(float(COUNT))[:, None].expand(COUNT, 5), torch.zeros(COUNT, 2))


class Buckets:
    """Batches of any sizes, drawn from torch's global generator."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(COUNT).tolist()
        yield from (order[:3], order[3:13], order[13:])


class ByEpoch:
    """A sampler with ``set_epoch``."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch, self.epoch + 6))

    def __len__(self) -> int:
        return 6


def epoch_of(loader: DataLoader[Any], epoch: int = 0, seed: int = 0) -> list[list[int]]:
    """The samples of each batch, by an order that is made for it."""
    order = LoaderOrder(loader, "the data")
    return [list(map(int, each)) for each in order.of_epoch(COUNT, order.batch_size or 1, seed, epoch)]


def sizes(loader: DataLoader[Any]) -> list[int]:
    return [len(batch) for batch in epoch_of(loader)]


def test_the_order_and_the_last_batch_are_those_of_the_loader() -> None:
    for drops_last in (False, True):
        loader = DataLoader(ROWS, 7, drop_last=drops_last)
        assert epoch_of(loader) == [inputs[:, 0].int().tolist() for inputs, _ in loader]
    assert epoch_of(DataLoader(ROWS, batch_sampler=BatchSampler(range(9), 4, True))) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert sizes(DataLoader(ROWS, batch_sampler=Buckets())) == [3, 10, 11]
    assert [epoch_of(DataLoader(ROWS, 6, sampler=ByEpoch()), epoch) for epoch in (0, 2)] == [
        [[0, 1, 2, 3, 4, 5]],
        [[2, 3, 4, 5, 6, 7]],
    ]


def test_a_shuffled_loader_takes_each_sample_once_and_drops_its_last_batch() -> None:
    loader = DataLoader(ROWS, 7, shuffle=True, drop_last=True)
    first, second = epoch_of(loader, 0), epoch_of(loader, 1)
    for found in (first, second):
        assert list(map(len, found)) == [7, 7, 7]
        assert len({index for batch in found for index in batch}) == 21
    assert first != second


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ROWS, 5, sampler=WeightedRandomSampler([1.0] * 4 + [0.0] * 20, 12)),
        DataLoader(ROWS, 5, sampler=SubsetRandomSampler(range(4), generator=torch.Generator())),
        DataLoader(ROWS, 5, sampler=RandomSampler(range(4), replacement=True, num_samples=9)),
        DataLoader(ROWS, batch_sampler=Buckets()),
    ],
    ids=lambda loader: type(loader.sampler).__name__,
)
def test_what_a_sampler_draws_is_the_same_again_in_every_process_and_leaves_nothing(loader: Any) -> None:
    torch.manual_seed(1)
    before, own = torch.get_rng_state(), getattr(loader.sampler, "generator", None)
    of_own = own.get_state() if own is not None else None
    third = epoch_of(loader, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert own is None or torch.equal(own.get_state(), of_own)
    torch.manual_seed(2)
    assert epoch_of(loader, 2) == third
    assert epoch_of(loader, 1) != third
    assert epoch_of(loader, 2, seed=1) != third
    if isinstance(loader.sampler, SubsetRandomSampler | WeightedRandomSampler | RandomSampler):
        assert {index for batch in third for index in batch} <= {0, 1, 2, 3}


def test_an_epoch_with_fewer_batches_and_an_empty_one_are_refused() -> None:
    class Fewer(ByEpoch):
        def __iter__(self) -> Iterator[int]:
            return iter(range(6 - self.epoch))

    with pytest.raises(ConfigError, match="gives 5 in epoch 1 and 6 in the first"):
        epoch_of(DataLoader(ROWS, 2, sampler=Fewer()), 1)
    empty = LoaderOrder(DataLoader(ROWS, 30, drop_last=True), "the data")
    with pytest.raises(ConfigError, match="an empty epoch or batch, by drop_last: the data set has 24"):
        empty.batch_rows(COUNT, 30, 0)


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (itertools.cycle(range(COUNT)), "gives more than 2400 in an epoch, which must have an end"),
        (["first", "second"], "gives other things than the whole numbers of samples"),
    ],
)
def test_a_sampler_without_end_and_one_of_names_are_refused(drawn: Any, message: str) -> None:
    class Drawn:
        def __iter__(self) -> Iterator[Any]:
            return iter(drawn)

    with pytest.raises(ConfigError, match=message):
        epoch_of(DataLoader(ROWS, 2, sampler=Drawn()))


def test_held_out_rows_that_give_no_batch_are_refused_before_the_run() -> None:
    small = DataLoader(TensorDataset(torch.zeros(3, 5), torch.zeros(3, 2)), 2, drop_last=True)
    with pytest.raises(ConfigError, match=r"--validation .* has 3 samples, and --batch-size is 7"):
        dpexp.run(
            "single", devices="cpu", data=DataLoader(ROWS, 7), validation=small, track=False, quiet=True
        )


@pytest.mark.parametrize(
    ("loader", "rows", "note"),
    [
        (DataLoader(ROWS, 7, drop_last=True), [7, 7, 7], ""),
        (DataLoader(ROWS, 7, num_workers=2), [7, 7, 7, 3], "the DataLoader: num_workers is not used"),
        (DataLoader(ROWS, 9, sampler=SequentialSampler(range(20))), [9, 9, 2], ""),
        (DataLoader(ROWS, batch_sampler=Buckets()), [3, 10, 11], "batches are those of its Buckets"),
    ],
)
def test_runs_of_all_layouts_take_these_batches(
    dpexp_home: Path, loader: Any, rows: list[int], note: str
) -> None:
    short: dict[str, Any] = {"warmup": 0, "phase_steps": 1, "epochs": 2, "track": False, "quiet": True}
    single = dpexp.run("single", model=nn.Linear(5, 2), data=loader, devices="cpu", **short)
    whole = dpexp.run("whole", model=nn.Linear(5, 2), data=loader, virtual=2, **short)
    for found in (single, whole):
        assert found.steps["samples"] == rows * 2
        assert found.data["samples"] == sum(rows)
        assert note in found.verification["note"]
        assert ("the DataLoader" in found.verification["note"]) == bool(note)
        assert broken(found) == []


def test_what_a_sampler_draws_is_known_to_the_ranks_that_must_agree_on_it() -> None:
    drawn = LoaderOrder(DataLoader(ROWS, 5, sampler=SubsetRandomSampler(range(4))), "the data").drawn(0)
    assert sorted(json.loads(drawn)) == [0, 1, 2, 3]
    assert LoaderOrder(DataLoader(ROWS, 5, shuffle=True), "the data").drawn(0) == ""
    assert json.loads(LoaderOrder(DataLoader(ROWS, batch_sampler=Buckets()), "the data").drawn(0))

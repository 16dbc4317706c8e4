"""User data: every form gives the same global batches in every process, as the user wrote them."""

import inspect
from collections import UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.invariants import broken
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.factories import Factory
from dpexp.data import registry
from dpexp.data.stream import Stream
from dpexp.data.user_batch import as_batch
from dpexp.data.user_data import OwnBatches, UserSource

COUNT = 24
ROWS = TensorDataset(torch.arange(float(COUNT))[:, None].expand(COUNT, 5), torch.zeros(COUNT, 2))
A, B, Y = torch.zeros(4, 5), torch.ones(4, 5), torch.full((4, 2), 2.0)
SHORT: dict[str, Any] = {"warmup": 1, "phase_steps": 1, "track": False, "quiet": True}


def source(value: Any) -> UserSource:
    """The source of data that a program gave."""
    found = registry.source(Factory("--data", "dpexp.live:data", live=value))
    assert isinstance(found, UserSource)
    return found


def epoch(data: Any, number: int = 0, seed: int = 0, size: int = 7) -> list[list[int]]:
    """The samples of ``ROWS`` in each batch."""
    dataset = source(data).dataset(nn.Linear(5, 2), 0)
    return [batch.inputs[0][:, 0].int().tolist() for batch in dataset.batches(size, seed=seed, epoch=number)]


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


class Noisy(Dataset[Any]):
    """Draws from every global generator."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.randn(5) + np.random.rand(), torch.zeros(2)


class Lines(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


def batches() -> Iterator[Any]:
    """A generator function."""
    for rows in (8, 8, 5):
        yield torch.randn(rows, 5), torch.randn(rows, 2)


def endless() -> Iterator[Any]:
    for _ in count():
        yield A, Y


# --- the order and the rows of batches ------------------------------------------------------------------


def test_a_loader_is_iterated_as_it_was_written() -> None:
    for loader in (
        DataLoader(ROWS, 7),
        DataLoader(ROWS, 7, drop_last=True),
        DataLoader(ROWS, 7, num_workers=2),
        DataLoader(ROWS, batch_sampler=BatchSampler(range(9), 4, True)),
        DataLoader(Lines(), 5),
    ):
        assert epoch(loader) == [inputs[:, 0].int().tolist() for inputs, _ in loader]
    assert [epoch(DataLoader(ROWS, 6, sampler=ByEpoch()), number) for number in (0, 2)] == [
        [[0, 1, 2, 3, 4, 5]],
        [[2, 3, 4, 5, 6, 7]],
    ]
    own = [(inputs + 1, targets) for inputs, targets in DataLoader(ROWS, 10)]
    assert [[value - 1 for value in batch] for batch in epoch(OwnBatches(own))] == epoch(DataLoader(ROWS, 10))


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(ROWS, 5, shuffle=True),
        DataLoader(Noisy(), 5, shuffle=True, num_workers=2, persistent_workers=True),
        DataLoader(ROWS, 5, sampler=SubsetRandomSampler(range(9), generator=torch.Generator())),
        DataLoader(
            ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS, generator=torch.Generator()), 5, True)
        ),
        DataLoader(ROWS, batch_sampler=Buckets()),
        Noisy(),
        batches,
    ],
)
def test_what_data_draws_is_that_of_seed_and_epoch_and_apart_from_what_the_model_draws(data: Any) -> None:
    dataset = source(data).dataset(nn.Linear(5, 2), 0)

    def drawn(seed: int, number: int) -> list[Tensor]:
        found = []
        for batch in dataset.batches(5, seed=seed, epoch=number):
            found.append(batch.inputs[0])
            torch.rand(number)  # as dropout does
        return found

    torch.manual_seed(1)
    third = drawn(0, 2)
    torch.manual_seed(1)
    torch.rand(2 * len(third))
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert all(map(torch.equal, drawn(0, 2), third))
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(torch.cat(drawn(0, 1)), torch.cat(third))
    assert not torch.equal(torch.cat(drawn(1, 2)), torch.cat(third))
    assert dataset.digest == source(data).dataset(nn.Linear(5, 2), 0).digest


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (DataLoader(ROWS, 7), {7: 3, 3: 1}),
        (DataLoader(ROWS, 7, drop_last=True), {7: 3}),
        (DataLoader(ROWS, 9, sampler=SubsetRandomSampler(range(5))), {5: 1}),
        (DataLoader(ROWS, 6, collate_fn=lambda rows: default_collate(rows[1:])), {5: 4}),
        (DataLoader(Lines(), 10), {10: 2, 4: 1}),
        (batches, {8: 2, 5: 1}),
    ],
)
def test_the_rows_of_an_epoch_are_known_before_it(data: Any, rows: dict[int, int]) -> None:
    (epochs,) = source(data).parts
    assert epochs.rows(30) == rows
    assert [*epochs.rows(30)] == [*rows]


def test_runs_of_all_layouts_take_these_batches(dpexp_home: Path) -> None:
    data = DataLoader(ROWS, batch_sampler=Buckets())
    rows = [rows for rows, number in source(data).parts[0].rows(7).items() for _ in range(number)]
    single = dpexp.run("single", model=nn.Linear(5, 2), data=data, devices="cpu", epochs=2, **SHORT)
    whole = dpexp.run("whole", model=nn.Linear(5, 2), data=data, virtual=2, epochs=2, **SHORT)
    for found in (single, whole):
        assert sorted(found.steps["samples"]) == sorted(rows * 2)
        assert found.data["samples"] == sum(rows)
        assert found.verification["passed"]
        assert broken(found) == []


def test_an_epoch_without_end_or_of_another_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpexp.data.stream.MOST_BATCHES", 50)
    with pytest.raises(ConfigError, match=r"more than 50 batches in an epoch.* with itertools\.islice"):
        source(endless).dataset(nn.Linear(5, 2), 0)
    sizes = iter((3, 3, 3, 2))
    stream = Stream(lambda: [(A, Y)] * next(sizes), "the data")
    assert stream.rows(4) == {4: 3}
    with pytest.raises(ConfigError, match="the data gives 2 batches in epoch 1: every epoch needs as many"):
        list(stream.batches(0, 0, 1, True))


# --- forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_given", [lambda tensor: tensor, lambda tensor: tensor.numpy()])
def test_two_inputs_and_a_target_are_not_data_to_train_and_to_test_on(as_given: Any) -> None:
    a, b, y = map(as_given, (A, B, Y))
    found = source(((a, b), y))
    assert len(found.parts) == 1
    assert [float(each[0, 0]) for each in (*found.first.inputs, found.first.targets)] == [0, 1, 2]
    two = source(((a, y), (b[:3], y[:3]))).dataset(nn.Linear(5, 2), 0)
    assert two.test is not None
    assert (two.epochs.samples, two.test.epochs.samples) == (4, 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *(
            (data, r"may be \(inputs, target\) or \(data to train on, data to test on\)")
            for data in ((ROWS, Y), (A, (B, Y)), ([A, B], Y), ({"a": A}, Y))
        ),
        *(
            (data, r"gives tensors of the shapes .*the samples in dimension 0, equally many")
            for data in ((A, Y[:3]), ((A, B[:3]), Y), torch.tensor(1.0), {"x": A, "y": Y[:3]})
        ),
        ((A, B, Y), r"gives a tuple; it must give tensors \(x, y\), \(\(x, z\), y\) for two inputs"),
        (Lines(), "gives a Lines, of single samples: give a DataLoader of it"),
        (
            lambda: iter([(A.to_sparse(), Y)]),
            r"a batch has a sparse tensor, .* make the sparse one in the forward",
        ),
        (
            lambda: iter([(torch.nested.nested_tensor([*A], layout=torch.jagged), Y)]),
            r"a batch has a nested tensor",
        ),
        (batches(), "gives a generator, which can be iterated over only once: give the function"),
        (
            DataLoader(ROWS, 2, sampler=DistributedSampler(ROWS, 2, 0)),
            "dpexp splits each batch over the ranks",
        ),
        (
            DataLoader(ROWS, 2, collate_fn=lambda rows: [*default_collate(rows), 0]),
            "a batch is a list of 3; it",
        ),
        ([], "is empty"),
    ],
)
def test_data_of_another_form_is_refused_with_advice(data: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source(data)


def test_the_keys_of_a_dict_are_arguments_of_the_forward() -> None:
    def forward(x: Any, scale: Any = 3, label: Any = None) -> None:
        """The signature of a model's."""

    def by_name(*, x: Any) -> None:
        """The signature of a model that takes no positional argument."""

    def split(values: dict[str, Any], of: Any = forward) -> Any:
        batch = as_batch(values, inspect.signature(of))
        return batch.inputs, batch.targets

    assert split({"label": Y, "x": A}) == ((A, 3, Y), Y)
    assert split({"x": A, "y": Y}) == ((A, 3, None), Y)
    assert split({"x": A}) == ((A, 3, None), None)
    for values, words in (
        ({"scale": A, "y": Y}, "a batch has scale, y, and .* takes x, scale, label: missing .* 'x'"),
        (
            {"x": A, "features": B},
            "unexpected keyword argument 'features'. The target is looked for as labels",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            split(values)
    with pytest.raises(ConfigError, match="takes x by name only"):
        split({"x": A}, by_name)


class Scaled(nn.Linear):
    def forward(self, x: Any, scale: Any) -> Any:
        return super().forward(x) * scale.sum()


@pytest.mark.parametrize(("scale", "is_split"), [(torch.ones(7), False), (torch.ones(1, 5), True)])
def test_tensors_that_are_not_rows_are_left_whole_or_refused(scale: Any, is_split: bool) -> None:
    data = [((torch.randn(4, 5), scale), torch.randn(4, 1)) for _ in range(2)]

    def run(strategy: str, **options: Any) -> Any:
        return dpexp.run(strategy, model=Scaled(5, 1), data=lambda: iter(data), steps=2, **SHORT, **options)

    assert run("single", devices="cpu").verification["passed"]
    assert dpexp.prove(Scaled(5, 1), lambda model, devices: model, data).passed
    if is_split:
        assert run("whole", virtual=2).verification["passed"]
        return
    with pytest.raises(ConfigError, match=r"a batch of 4 rows into 2 parts, and inputs\[1\] has shape"):
        run("whole", virtual=2)


# --- a structured input is one input --------------------------------------------------------------------


@dataclass
class Both:
    """Two tensors as one input."""

    a: Tensor
    b: Tensor


Named = namedtuple("Named", "a b")


class Encoding(UserDict[str, Any]):
    """As the BatchEncoding of Transformers: not a dict."""


class Sums(nn.Linear):
    """``how`` says what of its one input is summed to rows."""

    def __init__(self, how: Any) -> None:
        super().__init__(5, 2)
        self.how = how

    def forward(self, x: Any) -> Any:
        return super().forward(self.how(x))


def packed() -> Any:
    return pack_sequence([torch.randn(1 + row % 3, 5) for row in range(4)], enforce_sorted=False)


def images() -> Any:
    return [torch.randn(3, 2 + row, 5) for row in range(4)]


def sum_of_images(values: Any) -> Tensor:
    return torch.stack([each.sum((0, 1)) for each in values])


ONE_INPUT: dict[str, tuple[Any, Any, str]] = {
    "packed": (packed, lambda x: pad_packed_sequence(x)[0].sum(0), "is a PackedSequence"),
    "images": (images, sum_of_images, "is a list of 4, one Tensor for each row"),
    "dataclass": (
        lambda: Both(A.clone(), B),
        lambda x: x.a + x.b,
        "is of type Both, and every replica gets it with all 4 rows",
    ),
    "mapping": (
        lambda: Encoding(a=A.clone(), b=B),
        lambda x: x["a"] + x["b"],
        "is of type Encoding, and every replica gets it with all 4 rows",
    ),
}
"""What makes the input, what the model does with it, and why replicas refuse it."""


@pytest.mark.parametrize("form", ONE_INPUT)
def test_a_structured_input_is_one_input_and_replicas_refuse_it_by_type(form: str) -> None:
    make, how, words = ONE_INPUT[form]
    batches = [(make(), torch.randn(4, 2)) for _ in range(2)]
    options = {"model": Sums(how), "data": batches, "loss": nn.functional.mse_loss, "steps": 2, **SHORT}
    found = dpexp.run("single", devices="cpu", **options)
    assert found.verification["passed"]
    assert found.steps["samples"] == [4, 4]
    assert dpexp.prove(Sums(how), lambda model, devices: model, batches, nn.functional.mse_loss).passed
    with pytest.raises(ConfigError, match=rf"inputs\[0\] {words}"):
        dpexp.run("whole", virtual=2, **options)


def detection(rows: int) -> Any:
    """Images, and a dict of boxes for each."""
    return (torch.zeros(3, 2, 5),) * rows, ({"boxes": torch.zeros(1, 4)},) * rows


@pytest.mark.parametrize(
    ("values", "forward", "inputs", "whole"),
    [
        *((detection(rows), lambda images, targets=None: None, 1, None) for rows in (1, 2, 4)),
        ((Named(A, B), Y), lambda x: None, 1, {}),
        ((Named(A, B), Y), lambda x, y: None, 2, {}),
        ((Named(A, B), Y), lambda *x: None, 2, {}),
        (((A, [B, B]), (Y, Y)), lambda x, tables=None: None, 2, {}),
        (((A, [1, 2, 3]), Y), lambda *x: None, 2, {}),
        (((A, [1, 2, 3, 4]), Y), lambda *x: None, 2, {"inputs[1]": "is a list of 4, one int for each row"}),
    ],
)
def test_rows_and_the_forward_decide_what_is_one_input_and_what_cannot_be_split(
    values: Any, forward: Any, inputs: int, whole: dict[str, str] | None
) -> None:
    batch = as_batch(values, inspect.signature(forward))
    assert len(batch.inputs) == inputs
    assert whole is None or (batch.rows, batch.whole()) == (4, whole)


def test_strings_as_targets_are_not_split_and_replicas_need_not() -> None:
    batch = as_batch((A, ["a", "b", "c", "d"]))
    batch.check_rows(2, splits_targets=False)
    with pytest.raises(ConfigError, match="targets is a list of 4, one str for each row"):
        batch.check_rows(2)


def test_a_hidden_state_beside_rows_is_refused_with_what_to_do() -> None:
    batch = as_batch(((A, torch.zeros(2, 4, 6)), Y))
    with pytest.raises(ConfigError, match=r"inputs\[1\] has shape \(2, 4, 6\).* give x\.transpose\(0, 1\)"):
        batch.check_rows(2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((A[:0], Y[:0]), "is empty: its tensors have no rows"),
        ([(A[:0], Y[:0])], "a batch has no rows"),
        (
            DataLoader(ROWS, 30, drop_last=True),
            "gives 0 batches in epoch 0: .*; drop_last drops a smaller one",
        ),
        ([], "a list of batches .* is empty"),
    ],
)
def test_data_without_rows_is_refused_before_the_run(data: Any, words: str) -> None:
    for options in ({"data": data}, {"data": [(A, Y)], "validation": data}):
        with pytest.raises(ConfigError, match=words):
            dpexp.run("single", model=nn.Linear(5, 2), steps=1, **options, **SHORT)

"""User samples: which tensors become inputs and targets, and what is refused."""

import inspect
import re
from typing import Any

import named
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

import dpexp
from dpexp import live, parallel
from dpexp.config.errors import ConfigError
from dpexp.data import user_samples
from dpexp.data.user_data import UserSource

A, B, Y = torch.zeros(4, 5), torch.ones(4, 5), torch.full((4, 2), 2.0)


def source(value: Any) -> UserSource:
    """The source of live data."""
    with live.named({"data": value}) as names:
        found = named.source(names["data"])
    assert isinstance(found, UserSource)
    return found


def test_dict_batches_are_joined_by_key_in_any_order() -> None:
    rows = user_samples.of_batches([{"a": A, "b": B, "y": Y}, {"b": B, "y": Y, "a": A}])
    assert len(rows) == 8
    assert all((rows[row]["a"] == 0).all() and (rows[row]["b"] == 1).all() for row in range(8))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": A, "c": B}, r"batch 1 has \['a'\], \['c'\], and batch 0 has \['a'\], \['b'\]: every batch"),
        ({"a": A}, r"batch 1 has \['a'\], and batch 0 has"),
        ((A, B), r"batch 1 has \[0\], \[1\], and batch 0 has"),
        ({"a": A, "b": 3}, r"batch 1 holds a int at \['b'\], not a tensor"),
        ({"a": A, "b": torch.ones(4, 6)}, "the batches cannot be joined, row by row"),
    ],
)
def test_batches_of_different_entries_are_refused(second: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        user_samples.of_batches([{"a": A, "b": B}, second])


@pytest.mark.parametrize("as_given", [lambda tensor: tensor, lambda tensor: tensor.numpy()])
def test_two_inputs_and_a_target_are_not_data_to_train_and_to_test_on(as_given: Any) -> None:
    a, b, y = map(as_given, (A, B, Y))
    found = source(((a, b), y))
    assert found.test is None
    inputs, target = user_samples.split(found.train.dataset[0])
    assert [float(each[0]) for each in (*inputs, target)] == [0, 1, 2]


def test_two_pairs_are_data_to_train_and_to_test_on() -> None:
    found = source(((A, Y), (B[:3], Y[:3])))
    assert found.test is not None
    assert (len(found.train.dataset), len(found.test.dataset)) == (4, 3)


@pytest.mark.parametrize(
    "value", [(TensorDataset(A, Y), Y), (A, (B, Y)), ([A, B], Y), (A, TensorDataset(B, Y)), ({"a": A}, Y)]
)
def test_a_tuple_with_two_readings_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"may be \(inputs, target\) or \(data to train on, data to test on\)"
    ):
        source(value)


@pytest.mark.parametrize("value", [(A, Y[:3]), ((A, B[:3]), Y), (A, torch.tensor(1.0)), torch.tensor(1.0)])
def test_tensors_without_equally_many_rows_are_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"gives tensors of the shapes .*the samples in dimension 0, equally many"
    ):
        source(value)


PAIRS = TensorDataset(A, Y)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(PAIRS, batch_size=None), "a DataLoader without batch_size"),
        (
            DataLoader(PAIRS, sampler=DistributedSampler(PAIRS, 2, 0)),
            "dpexp splits each batch over",
        ),
    ],
)
def test_a_loader_without_global_batches_is_refused(loader: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source(loader)


def pairs_of_two(rows: list[Any]) -> Any:
    a, b, y = default_collate(rows)
    return (a, b), y


def test_where_a_collate_fn_joins_samples_it_is_its_batch_that_has_inputs_and_targets() -> None:
    threes = TensorDataset(A, B, Y)
    found = source(DataLoader(threes, 2, collate_fn=pairs_of_two)).dataset(nn.Bilinear(5, 5, 2), 0)
    inputs, targets = found.fetch(torch.tensor([0, 1]))
    assert [float(each[0, 0]) for each in (*inputs, targets)] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"sample 0 of \S+ is a tuple of 3; it must be a pair"):
        source(threes)
    with pytest.raises(ConfigError, match=r"sample 0 of \S+, as its collate_fn returns it, is a list of 3;"):
        source(DataLoader(PAIRS, 2, collate_fn=lambda rows: [*default_collate(rows), 0]))


class Scaled(nn.Linear):
    def forward(self, x: Any, scale: Any) -> Any:
        return super().forward(x) * scale.sum()


@pytest.mark.parametrize(
    ("scale", "is_split"), [(torch.tensor(2.0), False), (torch.ones(7), False), (torch.ones(1, 5), True)]
)
def test_tensors_that_are_not_rows_are_left_whole_or_refused(scale: Any, is_split: bool) -> None:
    def collate(rows: list[Any]) -> Any:
        x, y = default_collate(rows)
        return (x, scale), y

    def run(strategy: str, **options: Any) -> Any:
        given = {"model": Scaled(5, 1), "data": loader, "loss": "mse", "quiet": True, "track": False}
        return dpexp.run(strategy, **given, steps=2, warmup=1, phase_steps=0, **options)

    loader = DataLoader(TensorDataset(torch.randn(8, 5), torch.randn(8, 1)), 4, collate_fn=collate)
    devices, batches = (
        [torch.device("cpu", 0), torch.device("cpu", 1)],
        [((torch.randn(4, 5), scale), torch.randn(4, 1))],
    )
    assert run("single", devices="cpu").verification["passed"]
    assert dpexp.prove(Scaled(5, 1), lambda model, devices: model, batches).passed
    if is_split:
        assert run("whole", virtual=2).verification["passed"]
        return
    shape = re.escape(f"a batch of 4 rows into 2 parts, and inputs[1] has shape {tuple(scale.shape)}")
    with pytest.raises(ConfigError, match=shape):
        run("whole", virtual=2)
    with pytest.raises(ConfigError, match=shape):
        dpexp.prove(Scaled(5, 1), parallel.DataParallel, batches, devices=devices)


def test_the_note_has_what_is_not_as_the_loader_has_it_and_what_the_data_lacks() -> None:
    alone = source(DataLoader(TensorDataset(A), 3, shuffle=True))
    dataset = alone.dataset(nn.Linear(5, 2), 0)
    assert "the data has no targets" in alone.note
    assert dataset.note(3) == "the DataLoader: it is shuffled by --seed"
    assert dataset.note(2).startswith("the DataLoader: batches have 2 rows (--batch-size), not 3, it is")


def test_a_target_reaches_the_forward_where_it_is_an_argument() -> None:
    def forward(x: Any, scale: Any = 3, label: Any = None) -> None:
        """The signature of a model's."""

    signature = inspect.signature(forward)
    assert user_samples.split({"label": 2, "x": 1}, signature) == ((1, 3, 2), 2)
    assert user_samples.split({"features": 1, "label": 2}, signature) == ((1, 3, 2), 2)
    assert user_samples.split({"x": 1, "y": 2}, signature) == ((1,), 2)
    assert user_samples.split({"x": 1}, signature) == ((1,), None)


class Frame:
    """What a DataFrame looks like from outside."""

    def to_numpy(self) -> Any:
        return A.numpy()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((A, B, Y), "gives a tuple of 3 tensors, and which of them are inputs is not clear"),
        (Frame(), "gives a Frame, which is not a data set of samples: give tensors"),
        ((Frame(), Frame()), "gives a Frame, which is not a data set of samples"),
        (np.array(["a", 3], dtype=object), "making tensors of its arrays raised TypeError"),
        ({"x": A, "y": Y[:3]}, r"gives tensors of the shapes \(4, 5\), \(3, 2\)"),
    ],
)
def test_what_only_looks_like_a_data_set_is_refused_with_advice(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source(value)


def test_single_samples_in_a_list_are_shown_with_their_shapes() -> None:
    with pytest.raises(ConfigError, match=r"batch 0 has tensors of the shapes \(5,\), \(\)\. A list holds"):
        user_samples.of_batches([(torch.zeros(5), torch.tensor(1))])


def test_a_dict_of_tensors_is_columns() -> None:
    found = source({"x": A, "label": Y.numpy()})
    inputs, target = user_samples.split(found.train.dataset[3])
    assert len(found.train.dataset) == 4
    assert (inputs[0].shape, target.tolist()) == ((5,), [2, 2])


def test_batches_in_the_order_of_the_data_have_each_sample_once() -> None:
    """As those of data to test on are, whose batches after the first begin elsewhere."""
    found = source((torch.arange(7.0).reshape(7, 1), torch.arange(7.0)))
    dataset = found.dataset(nn.Linear(1, 1), 0)
    batches = list(dataset.batches(3, shuffle=False))
    assert [batch.targets.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.inputs[0].flatten().tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    (last,) = dataset.batches(3, shuffle=False, first=2)
    assert last.targets.tolist() == [6]

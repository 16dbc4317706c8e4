"""Pytrees: every tensor is found and every container keeps its type; casts and digests."""

import itertools
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

from dpexp import tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Outputs:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]


VALUE = OrderedDict(
    a=torch.zeros(2, 3),
    b=[Pair(torch.zeros(1), None), "text"],
    c=Outputs(torch.zeros(4), (torch.zeros(()), torch.zeros(5))),
)


def test_tensors_come_in_order() -> None:
    assert tensors.shapes(VALUE) == [[2, 3], [1], [4], [], [5]]


def test_mapping_keeps_containers_and_everything_else() -> None:
    ones = tensors.map_tensors(torch.ones_like, VALUE)
    assert type(ones) is OrderedDict
    assert isinstance(ones["b"][0], Pair)
    assert ones["b"][1] == "text"
    assert isinstance(ones["c"], Outputs)
    assert all(bool((tensor == 1).all()) for tensor in tensors.walk(ones))


def test_a_mapping_a_defaultdict_and_a_field_without_init_are_mapped() -> None:
    @dataclass
    class Cached:
        cache: torch.Tensor = field(init=False)

    cached = Cached()
    cached.cache = torch.zeros(1)
    value = (UserDict(a=torch.zeros(1)), defaultdict(list, b=torch.zeros(1)), cached)
    user, default, changed = tensors.map_tensors(torch.ones_like, value)
    assert (type(user), user["a"].item()) == (UserDict, 1)
    assert (default.default_factory, default["b"].item()) == (list, 1)
    assert (changed.cache.item(), cached.cache.item()) == (1, 0)


def test_leaves_have_paths_and_containers_may_be_leaves() -> None:
    assert [path for path, _ in tensors.leaves(VALUE, "x")] == [
        "x['a']",
        "x['b'][0].left",
        "x['b'][0].right",
        "x['b'][1]",
        "x['c'].logits",
        "x['c'].hidden[0]",
        "x['c'].hidden[1]",
    ]
    value = {"b": torch.zeros(2), "a": [torch.zeros(1)]}
    assert [len(tensor) for tensor in tensors.walk(value)] == [2, 1]
    found = tensors.leaves(value, is_leaf=lambda value: isinstance(value, list))
    assert [path for path, _ in found] == ["['b']", "['a']"]


def test_casting_leaves_ids_and_keeps_complex_numbers_complex() -> None:
    floats, ids, waves = tensors.cast(
        (torch.ones(1), torch.ones(1, dtype=torch.long), torch.ones(1) * 1j), torch.float64
    )
    assert [each.dtype for each in (floats, ids, waves)] == [torch.float64, torch.int64, torch.complex128]


def test_digests_depend_on_names_dtypes_shapes_and_bits() -> None:
    base = {"a": torch.tensor([1.0, 2.0])}
    assert tensors.digest(base) == tensors.digest({"a": torch.tensor([1.0, 2.0])})
    others = [
        {"b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0000002])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.bfloat16)},
    ]
    assert len({tensors.digest(each) for each in [base, *others]}) == 6


def test_digests_are_those_that_earlier_records_hold() -> None:
    content = {
        "b": torch.arange(3.0),
        "a": torch.zeros(0, 2, dtype=torch.bfloat16),
        "c": torch.tensor(1j),
        "d": torch.tensor([True]),
    }
    named = "6b281c7f381e15e5350142d8e56bd7fc0bc131f8b13c761b6066cb9c7a4461f5"
    unnamed = "09a0ee41b47891f330a88d49e8bc8ab9a65cca64acd7d54f5778440c474cbd11"
    assert tensors.digest(content) == named
    assert tensors.digest(content.values()) == unnamed


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_checksums_depend_on_types_shapes_bits_and_their_order(dtype: torch.dtype) -> None:
    size = 2 * tensors.CHUNK + 6
    base = torch.randint(2, (size,), generator=torch.Generator().manual_seed(0)).to(dtype)
    base[0], base[1], base[-1] = 0, 1, 1
    last, swapped, moved = base.clone(), base.clone(), base.roll(tensors.CHUNK)
    last[-1], swapped[0], swapped[1] = 0, 1, 0
    others = [base, last, swapped, moved, base.reshape(2, -1), base.to(torch.complex128)]
    assert len({tensors.checksum(each) for each in others}) == len(others)
    assert tensors.checksum(base.reshape(2, -1).t().contiguous().t()) == tensors.checksum(base.reshape(2, -1))


def test_signs_change_the_checksum_whichever_they_are() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    signs = [torch.tensor(each) for each in itertools.product((1.0, -1.0), repeat=4)]
    assert len({tensors.checksum(ones * each) for each in signs}) == 16
    assert tensors.checksum(torch.zeros(1)) != tensors.checksum(-torch.zeros(1))


def test_tensors_of_one_memory_have_their_own_shapes() -> None:
    shapes = {"matrix": (2, 3), "number": (), "none": (0, 3)}
    host = torch.device("cpu")
    found = tensors.empty_together({name: (shape, torch.float32, host) for name, shape in shapes.items()})
    assert {name: tuple(each.shape) for name, each in found.items()} == shapes
    assert len({each.untyped_storage().data_ptr() for each in found.values()}) == 1

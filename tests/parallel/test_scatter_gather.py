"""scatter and gather: chunks, containers, gradients, and errors instead of lost rows."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.utils.rnn import pack_sequence

from dpexp.devices import virtual
from dpexp.parallel import chunk_sizes, gather, scatter, scatter_kwargs

Pair = namedtuple("Pair", "left right")
X = torch.zeros(2)


@dataclass
class Scores:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


@dataclass(frozen=True)
class Table:
    table: torch.Tensor


def rows(chunks: Any) -> list[int]:
    return [chunk.shape[0] for chunk in chunks]


@pytest.mark.parametrize(
    ("batch", "count", "expected"),
    [
        (30, 8, [4] * 7 + [2]),
        (10, 8, [2] * 5),
        (9, 4, [3, 3, 3]),
        (0, 3, [0, 0, 0]),
        (1, 4, [1]),
    ],
)
def test_a_batch_is_split_as_chunk_splits_it(batch: int, count: int, expected: list[int]) -> None:
    assert chunk_sizes(batch, count) == expected
    assert rows(scatter(torch.zeros(batch, 5), virtual(count))) == expected


def test_a_write_into_a_chunk_does_not_change_the_batch() -> None:
    x = torch.ones(4, 2)
    for chunk in scatter(x, virtual(2)):
        chunk.zero_()
    assert torch.equal(x, torch.ones(4, 2))
    hidden = torch.ones(4, 2, requires_grad=True) * 2
    torch.cat([chunk.relu_() for chunk in scatter(hidden, virtual(2))]).sum().backward()


def test_non_tensors_go_to_every_device_by_reference() -> None:
    x, empty, table, text = torch.zeros(4), [], Table(torch.zeros(3)), "text"
    chunks = scatter((x, None, 3, text, empty, {}, (), table), virtual(2))
    assert len(chunks) == 2
    for _, nothing, number, words, same, no_dict, no_tuple, gathered in chunks:
        assert (nothing, number, words, no_dict, no_tuple) == (None, 3, text, {}, ())
        assert same is empty
        assert gathered is table


def test_keyword_and_positional_arguments_have_equally_many_chunks() -> None:
    x = torch.randn(10, 2)
    inputs, kwargs = scatter_kwargs((x,), {"scale": 2.0, "mask": x[:, 0]}, virtual(8))
    assert len(inputs) == len(kwargs) == 5
    assert [
        (len(args[0]), len(named["mask"]), named["scale"]) for args, named in zip(inputs, kwargs, strict=True)
    ] == [(2, 2, 2.0)] * 5


def test_different_batch_sizes_are_an_error_and_no_rows_are_dropped() -> None:
    with pytest.raises(ValueError, match=r"inputs\[1\] has 2 rows and inputs\[0\] has 8"):
        scatter((torch.zeros(8), torch.zeros(2)), virtual(4))
    with pytest.raises(ValueError, match=r"mask\['m'\] has 3 rows and inputs\[0\] has 8"):
        scatter_kwargs((torch.zeros(8),), {"mask": {"m": torch.zeros(3)}}, virtual(4))


def test_a_tensor_of_one_row_is_copied_to_every_device() -> None:
    positions = torch.arange(3.0).unsqueeze(0).requires_grad_()
    inputs, kwargs = scatter_kwargs((torch.zeros(10, 3),), {"positions": positions}, virtual(3))
    assert [len(args[0]) for args in inputs] == [4, 4, 2]
    assert all(torch.equal(named["positions"], positions) for named in kwargs)
    sum(named["positions"].sum() for named in kwargs).backward()  # type: ignore[union-attr]
    assert positions.grad is not None
    assert positions.grad.tolist() == [[3.0, 3.0, 3.0]]
    assert len(scatter((torch.zeros(1), torch.zeros(1)), virtual(3))) == 1


def test_a_tensor_without_the_dimension_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"inputs\[1\] cannot be split along dimension 0, its shape is \(\)"):
        scatter((torch.zeros(8), torch.tensor(1.0)), virtual(4))
    with pytest.raises(ValueError, match="dimension 2"):
        scatter(torch.zeros(8, 3), virtual(2), dim=2)


def test_the_error_for_a_packed_sequence_explains_where_to_pack() -> None:
    packed = pack_sequence([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(ValueError, match="pack inside"):
        scatter((packed,), virtual(2))
    with pytest.raises(TypeError, match="total_length"):
        gather([packed, packed], "cpu")


# --- gather --------------------------------------------------------------------------------------


def test_gather_concatenates_and_sends_gradients_to_each_replica() -> None:
    a, b = (torch.randn(n, 4, dtype=torch.double, requires_grad=True) for n in (3, 2))
    gathered = gather([a, b], virtual(2)[1])
    assert torch.equal(gathered, torch.cat([a, b]))
    grad = torch.randn(5, 4, dtype=torch.double)
    gathered.backward(grad)
    assert torch.equal(a.grad, grad[:3])
    assert torch.equal(b.grad, grad[3:])


def test_dicts_are_gathered_by_key_whatever_the_order_of_their_entries() -> None:
    """A replica may fill its dict in another order, as one does that adds what only its rows need."""
    first = {"scores": torch.zeros(2, 3), "inner": {"a": torch.zeros(2, 3), "b": torch.ones(2, 3)}}
    second = {"inner": {"b": torch.ones(1, 3), "a": torch.zeros(1, 3)}, "scores": torch.zeros(1, 3)}
    gathered = gather([first, second], "cpu")
    assert list(gathered) == ["scores", "inner"]
    assert torch.equal(gathered["inner"]["a"], torch.zeros(3, 3))
    assert torch.equal(gathered["inner"]["b"], torch.ones(3, 3))
    assert torch.equal(gathered["scores"], torch.zeros(3, 3))


def test_none_stays_none_and_dataclasses_are_gathered_field_by_field() -> None:
    out = gather([Scores(torch.zeros(2, 3)), Scores(torch.ones(1, 3))], "cpu")
    assert isinstance(out, Scores)
    assert out.logits.shape == (3, 3)
    assert out.hidden is None
    frozen = gather([Table(torch.zeros(2)), Table(torch.zeros(1))], "cpu")
    assert frozen.table.shape == (3,)


def test_a_dict_that_is_a_dataclass_too_is_gathered_as_a_dict() -> None:
    @dataclass
    class ModelOutput(OrderedDict[str, Any]):  # as the outputs of Hugging Face's models are
        logits: Any = None

        def __init__(self, items: Any = ()) -> None:
            OrderedDict.__init__(self, items)
            self.logits = self.get("logits")

    out = gather([ModelOutput([("logits", torch.zeros(2, 3))])] * 2, "cpu")
    assert type(out) is ModelOutput
    assert out.logits.shape == out["logits"].shape == (4, 3)


def test_an_output_that_cannot_be_gathered_is_named_with_its_path() -> None:
    with pytest.raises(TypeError, match=r"output\['n'\]\[0\] is an int .* cannot be joined from 2 replicas"):
        gather([{"n": [1]}, {"n": [1]}], "cpu")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"a": [X], "b": X}, "output is a dict of 'a' in replica 0 and a dict of 'a', 'b' in replica 1"),
        ({"a": (X,)}, r"output\['a'\] is a list of length 1 in replica 0 and a tuple of length 1 in"),
        ({"a": [X.sum()]}, r"a Tensor of 1 dimension in replica 0 and a Tensor of 0 dimensions in replica 1"),
    ],
)
def test_replicas_that_differ_in_structure_are_named(second: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather([{"a": [X]}, second], "cpu")


# --- random containers, types and dimensions; every run tries the same ones --------------------

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@st.composite
def tensors(draw: st.DrawFn, rows: int, dim: int) -> torch.Tensor:
    """A tensor with ``rows`` along ``dim``, which may be negative."""
    rank = draw(st.integers(dim + 1 if dim >= 0 else -dim, 4))
    shape = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    shape[dim] = rows
    dtype = draw(st.sampled_from(DTYPES))
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def containers(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested containers with these leaves."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2), inner, max_size=3),
            st.dictionaries(st.integers(), inner, max_size=3).map(OrderedDict),
            st.tuples(inner, inner).map(lambda items: Pair(*items)),
        ),
        max_leaves=6,
    )


def equal(a: Any, b: Any) -> bool:
    """The same structure, types and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(0, 12), st.integers(1, 9), st.integers(-3, 2))
def test_scatter_then_gather_is_the_identity(data: st.DataObject, rows: int, count: int, dim: int) -> None:
    value = data.draw(containers(st.one_of(tensors(rows, dim), st.none())))
    chunks = scatter(value, virtual(count), dim)
    assert len(chunks) in (count, len(chunk_sizes(rows, count)))
    assert equal(gather(chunks, "cpu", dim), value)
    if isinstance(value, torch.Tensor):
        assert equal(list(chunks), list(value.chunk(count, dim)))

"""Properties of dpexp.parallel over random containers, types, dimensions, devices and modules.

The modules come from a grammar: a net is a row of layers, a layer may hold nets::

    net    := layer*
    layer  := linear | conv | normalization | activation | dropout | scale | embed
            | residual(net) | twice(net) | branches(net, net)

with shapes ``(features,)`` and ``(channels, height, width)`` that fit. They are in
eval mode, because BatchNorm and dropout in training are meant to differ. Examples are derandomized:
every run tries the same ones.
"""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

from dpexp.devices import virtual
from dpexp.parallel import DataParallel, chunk_sizes, data_parallel, gather, scatter

pytestmark = pytest.mark.usefixtures("one_thread")
Pair = namedtuple("Pair", "left right")
Shape = tuple[int, ...]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def thorough(examples: int) -> Any:
    return settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck))


# --- scatter, then gather ------------------------------------------------------------------------


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


@thorough(300)
@given(st.data(), st.integers(0, 12), st.integers(1, 9), st.integers(-3, 2))
def test_scatter_then_gather_is_the_identity(data: st.DataObject, rows: int, count: int, dim: int) -> None:
    value = data.draw(containers(st.one_of(tensors(rows, dim), st.none())))
    chunks = scatter(value, virtual(count), dim)
    assert len(chunks) in (count, len(chunk_sizes(rows, count)))
    assert equal(gather(chunks, "cpu", dim), value)
    if isinstance(value, torch.Tensor):
        assert equal(list(chunks), list(value.chunk(count, dim)))


@thorough(300)
@given(st.integers(0, 500), st.integers(1, 40))
def test_chunk_sizes_are_those_of_chunk(rows: int, count: int) -> None:
    assert chunk_sizes(rows, count) == [len(chunk) for chunk in torch.zeros(rows).chunk(count)]


# --- modules from the grammar --------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    """One net under two names, called twice: its parameters are shared."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = self.second = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Branches(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.weights = nn.ParameterList([torch.randn(()) for _ in branches])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(branch(x) * w for branch, w in zip(self.branches, self.weights, strict=True))


class Scale(nn.Module):
    """A parameter in a dict, a buffer, a frozen parameter, and one that is not used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parameters_by_name = nn.ParameterDict({"scale": torch.randn(size)})
        self.frozen = nn.Parameter(torch.randn(size), requires_grad=False)
        self.spare = nn.Parameter(torch.randn(size))
        self.register_buffer("shift", torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.parameters_by_name["scale"] + self.shift * self.frozen


class Embed(nn.Module):
    """Features become ids that are looked up, so that only rows that occur get a gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(x.detach().sum(-1).mul(10).nan_to_num(0.0, 0.0, 0.0).long() % 7)


def activations(_: Shape) -> dict[str, Callable[[], nn.Module]]:
    return {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "prelu": nn.PReLU,
        "dropout": nn.Dropout,
        "identity": nn.Identity,
    }


def layers(shape: Shape) -> dict[str, Callable[[], nn.Module]]:
    """The layers that take ``(batch, *shape)`` and give ``(batch, *shape)``."""
    size = shape[0]
    if len(shape) == 1:
        own = {
            "linear": lambda: nn.Linear(size, size),
            "no bias": lambda: nn.Linear(size, size, bias=False),
            "batch norm": lambda: nn.BatchNorm1d(size),
            "layer norm": lambda: nn.LayerNorm(size),
            "scale": lambda: Scale(size),
            "embed": lambda: Embed(size),
            "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(size, size)),
            "bilinear": lambda: Residual(nn.Linear(size, size)),
        }
    else:
        own = {
            "conv": lambda: nn.Conv2d(size, size, 3, padding=1),
            "depthwise": lambda: nn.Conv2d(size, size, 3, padding=1, groups=size),
            "channels last": lambda: nn.Conv2d(size, size, 1).to(memory_format=torch.channels_last),
            "batch norm": lambda: nn.BatchNorm2d(size),
            "group norm": lambda: nn.GroupNorm(2, size),
            "pool": lambda: nn.AvgPool2d(3, 1, 1),
        }
    return {**own, **activations(shape)}


@st.composite
def nets(draw: st.DrawFn, shape: Shape, depth: int = 2) -> nn.Module:
    """A net that keeps the shape, at most ``depth`` nets within each other."""
    known = layers(shape)
    row: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 3 if depth == 2 else 2))):
        names = [*known, *(["residual", "twice", "branches"] if depth else [])]
        name = draw(st.sampled_from(names))
        if name in known:
            row.append(known[name]())
        elif name == "branches":
            row.append(Branches(draw(nets(shape, depth - 1)), draw(nets(shape, depth - 1))))
        else:
            row.append((Residual if name == "residual" else Twice)(draw(nets(shape, depth - 1))))
    return nn.Sequential(*row)


class Net(nn.Module):
    """An affine input layer, the net, and an output of one of several structures."""

    def __init__(self, shape: Shape, body: nn.Module, form: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(shape))
        self.body = body
        self.form = form

    def forward(self, x: torch.Tensor, *, factor: float = 1.0) -> Any:
        y = self.body(x * self.scale * factor)
        forms = {
            "tensor": y,
            "tuple": (y, None, x),
            "dict": {"y": y, "mean": [y.flatten(1).mean(1)]},
            "pair": Pair(y, {"x": x}),
        }
        return forms[self.form]


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in flat(item)]


def error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The relative norm of the difference over all tensors together."""
    assert [a.shape for a in found] == [b.shape for b in expected]
    both = [torch.cat([t.detach().flatten() for t in side] or [torch.zeros(1)]) for side in (found, expected)]
    return float((both[0] - both[1]).norm() / both[1].norm().clamp(min=1e-300))


def outputs_and_gradients(
    run: Callable[..., Any], net: nn.Module, x: torch.Tensor, factor: float
) -> tuple[Any, list[torch.Tensor], list[bool]]:
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = run(x, factor=factor)
    sum((t.square().sum() for t in flat(out)), torch.zeros(())).backward()
    tensors = [x, *net.parameters()]
    return (
        out,
        [torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in tensors],
        [t.grad is None for t in tensors],
    )


@pytest.mark.parametrize(("shape", "examples"), [((6,), 300), ((4, 3, 3), 200)], ids=["vector", "image"])
def test_random_modules_equal_their_data_parallel(shape: Shape, examples: int) -> None:
    tried = 0

    @thorough(examples)
    @given(
        st.data(),
        st.integers(1, 9),
        st.sampled_from([1, 2, 3, 8]),
        st.sampled_from(["tensor", "tuple", "dict", "pair"]),
        st.integers(0, 2**16),
        st.booleans(),
    )
    def check(data: st.DataObject, rows: int, count: int, form: str, seed: int, functional: bool) -> None:
        nonlocal tried
        torch.manual_seed(seed)
        net = Net(shape, data.draw(nets(shape)), form).double().eval()
        x = torch.randn(rows, *shape, dtype=torch.double)
        wrapped = DataParallel(net, virtual(count))

        def run(x: torch.Tensor, factor: float) -> Any:
            if functional:
                return data_parallel(net, x, virtual(count), module_kwargs={"factor": factor})
            return wrapped(x, factor=factor)

        expected, wanted, unused = outputs_and_gradients(net, net, x, 0.5)
        found, gradients, missing = outputs_and_gradients(run, net, x, 0.5)
        assert type(found) is type(expected)
        assert error(flat(found), flat(expected)) <= 1e-12
        assert error(gradients, wanted) <= 1e-12
        assert missing == unused
        with torch.inference_mode():
            assert error(flat(run(x, 0.5)), flat(expected)) <= 1e-12
        tried += 1

    check()
    assert tried >= examples // 2

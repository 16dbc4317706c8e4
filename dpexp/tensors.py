"""Pytrees: what models take and return, as dict, list, tuple, namedtuple and dataclass of tensors.

Everything else (None, numbers, strings) is a leaf that stays as it is. This is the only walker of dpexp:
unlike ``torch.utils._pytree`` it enters dataclasses and subclasses of dict without registration.
"""

import copy
import dataclasses
import hashlib
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

CHUNK, CHUNK_OF_DEVICE = 28 * 1024, 1 << 22
"""So many numbers are computed with at a time: in float64 they stay in a CPU's cache.

From 2**15 on PyTorch takes all threads, which wait for one another after each operation: 10 to 50 times as
long where other processes run."""


def entries(value: Any) -> list[tuple[str, Any]] | None:
    """(path, entry) of a container's entries; None of a leaf. Paths: ``['key']``, ``[0]``, ``.field``."""
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", None)
        if names is None:
            return [(f"[{index}]", entry) for index, entry in enumerate(value)]
    elif isinstance(value, dict | Mapping):  # dict first: the check is several times as fast
        return [(f"[{key!r}]", entry) for key, entry in value.items()]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        return None
    return [(f".{name}", getattr(value, name)) for name in names]


def rebuild(container: Any, values: Iterable[Any]) -> Any:
    """A container of the same type and keys, with other values in the order of ``entries``."""
    if isinstance(container, list | tuple):
        return type(container)(*values) if hasattr(container, "_fields") else type(container)(values)
    if isinstance(container, defaultdict):
        return type(container)(container.default_factory, zip(container, values, strict=True))
    if isinstance(container, dict | Mapping):
        return type(container)(dict(zip(container, values, strict=True)))  # type: ignore[call-arg]
    changed = copy.copy(container)
    for field, value in zip(dataclasses.fields(container), values, strict=True):
        object.__setattr__(changed, field.name, value)  # frozen ones too
    return changed


def leaves(
    value: Any, path: str = "", is_leaf: Callable[[Any], bool] = lambda _: False
) -> Iterator[tuple[str, Any]]:
    """(path, leaf) of every leaf of a pytree, in order; ``is_leaf`` may name containers not to enter."""
    inside = None if isinstance(value, torch.Tensor) or is_leaf(value) else entries(value)
    if inside is None:
        yield path, value
        return
    for step, entry in inside:
        yield from leaves(entry, path + step, is_leaf)


def walk(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a pytree, of any shape, in the order of ``leaves``."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        is_plain = type(value) in (tuple, list)  # most are, in every step
        for entry in value if is_plain else [each for _, each in entries(value) or ()]:
            yield from walk(entry)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The pytree with ``change`` applied to every tensor of any shape; containers keep their type."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is tuple:  # most are, in every step
        return tuple([map_tensors(change, entry) for entry in value])
    inside = entries(value)
    return value if inside is None else rebuild(value, [map_tensors(change, entry) for _, entry in inside])


def concatenated(trees: Sequence[Any], *, of_batches: bool = False) -> Any:
    """The rows of all, ``(rows, …)``, in one tensor after the other; the rest is that of the first.

    Scalars become a vector. ``of_batches``: the trees are parts of one batch, so that scalars and the rest
    must be the same in all; raises ValueError where they are not.
    """
    first = trees[0]
    if not isinstance(first, torch.Tensor):
        inside = [entries(each) for each in trees]
        if inside[0] is None:
            if of_batches and any(each != first for each in trees):
                raise ValueError("values differ")
            return first
        columns = zip(*[[each for _, each in of_tree or ()] for of_tree in inside], strict=True)
        return rebuild(first, [concatenated(column, of_batches=of_batches) for column in columns])
    if first.dim():
        if of_batches and len({each.shape[1:] for each in trees}) > 1:
            raise ValueError("rows have other shapes (padded to other lengths?)")
        return torch.cat([each.to(first.device) for each in trees])
    if not of_batches:
        return torch.stack(list(trees))
    if not all(torch.equal(first, each) for each in trees):
        raise ValueError("numbers differ")
    return first


def shapes(value: Any) -> list[list[int]]:
    """The shapes of all tensors of a pytree, in order; a scalar's shape is ``[]``."""
    return [list(tensor.shape) for tensor in walk(value)]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The pytree with floating-point tensors in this dtype and complex ones in its complex counterpart.

    Integers and booleans (ids, labels, masks) keep their dtype.
    """
    return map_tensors(lambda tensor: _cast(tensor, dtype), value)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """The 2-norm of a dense or sparse tensor, a scalar in float32 at least."""
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    is_short = values.is_floating_point() and values.element_size() < 4
    found: torch.Tensor = torch.linalg.vector_norm(values.float() if is_short else values)
    return found


def empty_together(
    like: Mapping[str, tuple[Sequence[int], torch.dtype, torch.device]],
) -> dict[str, torch.Tensor]:
    """Tensors of these shapes, types and devices by name, without numbers.

    Those of one type are one piece of memory, which is freed as one, and leaves no gaps.
    """
    found = dict[str, torch.Tensor]()
    for kind in {(dtype, device) for _, dtype, device in like.values()}:
        shapes = {name: shape for name, (shape, *own) in like.items() if tuple(own) == kind}
        sizes = [math.prod(shape) for shape in shapes.values()]
        pieces = torch.split(torch.empty(sum(sizes), dtype=kind[0], device=kind[1]), sizes)
        found |= {name: each.view(shapes[name]) for name, each in zip(shapes, pieces, strict=True)}
    return found


def chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The numbers of dense tensors of one shape, as vectors of a few at a time, of each tensor the same.

    They come in the order of the first tensor's memory: tensors that are laid out alike are not copied.
    """
    first = tensors[0]
    size = CHUNK if first.device.type == "cpu" else CHUNK_OF_DEVICE
    order = sorted(range(first.dim()), key=first.stride, reverse=True)
    return zip(*(torch.split(each.detach().permute(order).flatten(), size) for each in tensors), strict=True)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers in float64 or complex128, on their device, or on the host if that has no such numbers."""
    values = tensor.detach()
    values = values.cpu() if values.device.type == "mps" else values
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def checksum(tensor: torch.Tensor) -> int:
    """A number of 64 bits of a dense tensor's type, shape and bits, computed on its device.

    Equal ones have equal checksums on all devices; others have them by chance only (below 1e-9).
    """
    flat = tensor.detach().resolve_conj().resolve_neg().flatten()
    words = flat.view({1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32))
    count = len(words) // CHUNK
    at_a_time = 1 if words.device.type == "cpu" else CHUNK_OF_DEVICE // CHUNK
    rows = torch.split(words[: count * CHUNK].view(count, CHUNK), at_a_time)
    weights = _weights(0, min(len(words), CHUNK), words.device)
    last = words[count * CHUNK :]
    sums = [(some * weights).sum(1) for some in rows] if count else []
    sums.append((last * weights[: len(last)]).sum(0, keepdim=True))
    total = (torch.cat(sums) * _weights(CHUNK, count + 1, words.device)).sum()
    return int(total) ^ zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode())


def _weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Odd numbers of 64 bits that are like chance, by SplitMix64."""
    place = torch.arange(first + 1, first + count + 1, device=device) * -0x61C8864680B583EB
    place = (place ^ (place >> 30)) * -0x40A7B892E31B1A47
    return (place ^ (place >> 27)) * -0x6B2FB644ECCEEE15 | 1


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module, its parameters and buffers cast in place as ``cast`` does: complex ones stay complex."""
    module._apply(lambda tensor: _cast(tensor, dtype))  # type: ignore[no-untyped-call]
    return module


def digest(tensors: Mapping[str, torch.Tensor] | Iterable[torch.Tensor]) -> str:
    """SHA-256 over dtypes, shapes and bytes, and names where there are any: equal only for equal bits.

    Named tensors are taken in the order of their names, others as they come, one in memory at a time.
    Records hold these digests, so the headers below must not change.
    """
    sha = hashlib.sha256()
    named = sorted(tensors.items()) if isinstance(tensors, Mapping) else ((None, each) for each in tensors)
    for name, tensor in named:
        dtype, shape = tensor.dtype, tuple(tensor.shape)
        sha.update((f"{dtype}{shape}" if name is None else f"{name}|{dtype}|{shape}|").encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()

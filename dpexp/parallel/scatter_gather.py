"""Scatter: one batch becomes a piece for each device. Gather: the pieces' outputs become one output.

Ten rows over three devices, along dimension 0::

    rows 0 1 2 3 4 5 6 7 8 9          cpu:0  [0 1 2 3] ─┐
         └─────┘ └─────┘ └─┘  scatter cpu:1  [4 5 6 7] ─┼─ gather ──► 0 1 2 3 4 5 6 7 8 9
                                      cpu:2  [8 9]     ─┘

The pieces are those of ``Tensor.chunk``: equal but for the last one, and fewer than the devices when
the rows run out (10 over 8 are five pieces of 2). Both walk through dict, list, tuple and
namedtuple and keep their types; both are differentiable, twice too. Zero rows make an empty piece for
each device.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dpexp.devices import label, may_not_wait, physical
from dpexp.parallel.device_ids import Target, listed, target, targets


def pieces(batch_size: int, devices: int | Sequence[Target]) -> list[int]:
    """Rows of each piece of a batch over so many devices, as ``Tensor.chunk`` cuts it.

    ``pieces(30, 8)`` is ``[4, 4, 4, 4, 4, 4, 4, 2]``, ``pieces(10, 8)`` is ``[2, 2, 2, 2, 2]``.
    """
    count = devices if isinstance(devices, int) else len(devices)
    if batch_size < 0 or count < 1:
        raise ValueError(f"{batch_size} rows over {count} devices: rows are at least 0, devices at least 1")
    if batch_size == 0:
        return [0] * count
    size = -(-batch_size // count)
    full, rest = divmod(batch_size, size)
    return [size] * full + [rest] * (rest > 0)


# --- scatter -------------------------------------------------------------------------------------


def scatter(inputs: Any, devices: Sequence[Target], dim: int = 0) -> Any:
    """One piece of ``inputs`` for each device, or for each of the first few when rows are fewer.

    A tensor ``(batch, …)`` gives a tuple of tensors ``(rows, …)``, each in memory of its own on its
    device; a container gives a list of containers. What is neither (None, numbers, strings, empty
    containers, dataclasses) goes to every device by reference. A tensor of one row beside others of
    many, which broadcasts over the batch as positions and masks do, goes to every device whole.

    Raises ValueError where tensors have different batch sizes, no dimension ``dim`` or none at all.
    """
    where = targets(devices)
    shares = _scatter(inputs, where, _count(_sizes({"inputs": inputs}, dim), where), dim)
    return tuple(shares) if isinstance(inputs, torch.Tensor) else shares


def scatter_kwargs(
    inputs: Any, kwargs: dict[str, Any] | None, devices: Sequence[Target], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Positional and keyword arguments together: as many of the one as of the other.

    Two tuples, of ``(args, …)`` and of ``({name: value}, …)``, an entry for each piece of the batch;
    both empty when there is neither argument. Raises as ``scatter`` does.
    """
    where = targets(devices)
    if not inputs and not kwargs:
        return (), ()
    count = _count(_sizes({"inputs": inputs, **(kwargs or {})}, dim), where)
    return (
        tuple(_scatter(inputs, where, count, dim) if inputs else [()] * count),
        tuple(_scatter(kwargs, where, count, dim) if kwargs else ({} for _ in range(count))),
    )


def _sizes(arguments: dict[str, Any], dim: int) -> dict[str, int]:
    """The batch size of every tensor, by the path that leads to it: ``{"inputs[0]": 10, "mask": 10}``."""
    found: dict[str, int] = {}
    for name, value in arguments.items():
        for path, tensor in _tensors(name, value):
            if not -tensor.dim() <= dim < tensor.dim():
                raise ValueError(
                    f"{path} cannot be split along dimension {dim}, its shape is {tuple(tensor.shape)}: "
                    "give it a batch dimension (x.expand(batch_size)), or pass a number, "
                    "which goes to every device as it is"
                )
            found[path] = tensor.size(dim)
    return found


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, PackedSequence):
        raise ValueError(
            f"{path} is a PackedSequence, which has no batch dimension to split: pass the padded batch "
            "and the lengths, and pack inside the module's forward"
        )
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}[{index}]", item)


def _count(sizes: dict[str, int], devices: Sequence[torch.device]) -> int:
    """How many pieces there are: the same for every argument, or ValueError."""
    if not sizes:
        return len(devices)
    (first, size), *others = ({path: n for path, n in sizes.items() if n != 1} or sizes).items()
    for path, other in others:
        if other != size:
            raise ValueError(
                f"{path} has {other} rows and {first} has {size}: tensors are split over "
                f"{listed(devices)} together and must have the same batch size. Expand the smaller one, "
                "or pass what every device needs whole inside a dataclass, which is not split"
            )
    return len(pieces(size, devices))


def _sent(chunk: torch.Tensor, device: torch.device) -> torch.Tensor:
    return chunk.to(physical(device), non_blocking=may_not_wait(device), copy=True)


def _scatter(value: Any, devices: Sequence[torch.device], count: int, dim: int) -> list[Any]:
    """The value's shares, one for each of ``count`` pieces."""
    if isinstance(value, torch.Tensor):
        if count > 1 and value.size(dim) == 1:  # the batch has more rows: this one broadcasts over them
            return [_sent(value, device) for device in devices[:count]]
        return [
            _sent(chunk, device)
            for chunk, device in zip(value.chunk(len(devices), dim), devices, strict=False)
        ]
    if not value or not isinstance(value, dict | list | tuple):
        return [value] * count
    if isinstance(value, dict):
        columns = [_scatter(item, devices, count, dim) for item in value.values()]
        return [_like(value, zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    rows = zip(*(_scatter(item, devices, count, dim) for item in value), strict=True)
    if _field_names(value):
        return [type(value)(*row) for row in rows]
    return [list(row) if isinstance(value, list) else row for row in rows]


# --- gather --------------------------------------------------------------------------------------


def gather(outputs: Sequence[Any], target_device: Target, dim: int = 0) -> Any:
    """One output on the target device, from the outputs of all replicas: the inverse of ``scatter``.

    Tensors ``(rows, …)`` are concatenated along ``dim`` to ``(batch, …)``; tensors without dimension
    become a vector, an element a replica, with a warning. None stays None. Dicts, lists, tuples,
    namedtuples and dataclasses are gathered entry by entry and keep their type.

    Raises TypeError for what cannot be joined (numbers, strings) or differs in kind between
    replicas, and ValueError for other keys, lengths or shapes; the message names the entry.
    """
    if not outputs:
        raise ValueError("nothing to gather: there is no output of any replica")
    return _gather(list(outputs), target(target_device), dim, "output")


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    _same_kind(outputs, path)
    if isinstance(first, torch.Tensor):
        return _concatenate(outputs, device, dim, path)
    if first is None:
        return None
    if isinstance(first, PackedSequence):
        raise TypeError(
            f"{path} is a PackedSequence, which cannot be gathered: unpack it inside the module's forward, "
            "with pad_packed_sequence(…, total_length=…) so that every replica pads to the same length"
        )

    def entry(at: str, entries: Iterable[Any]) -> Any:
        return _gather(list(entries), device, dim, path + at)

    if isinstance(first, dict):
        _same(outputs, path, "keys", lambda output: sorted(map(repr, output)))
        return _like(first, ((key, entry(f"[{key!r}]", (o[key] for o in outputs))) for key in first))
    if isinstance(first, list | tuple):
        _same(outputs, path, "length", len)
        if not first:
            return first
        columns = list(zip(*outputs, strict=True))
        names = _field_names(first)
        if names:
            return type(first)(*(entry(f".{n}", column) for n, column in zip(names, columns, strict=True)))
        return type(first)(entry(f"[{i}]", column) for i, column in enumerate(columns))
    if dataclasses.is_dataclass(first):
        whole = copy.copy(first)
        for field in dataclasses.fields(first):
            at = field.name
            object.__setattr__(whole, at, entry(f".{at}", (getattr(o, at) for o in outputs)))
        return whole
    raise TypeError(
        f"{path} is {_a(first)} ({first!r:.60}), which cannot be joined from {len(outputs)} replicas: "
        "return tensors with a batch dimension, None, or containers of them. A number a replica is "
        "torch.tensor([number]); what is the same for all belongs outside of the wrapped module"
    )


def _concatenate(outputs: list[torch.Tensor], device: torch.device, dim: int, path: str) -> torch.Tensor:
    _same(outputs, path, "number of dimensions", torch.Tensor.dim)
    if outputs[0].dim() == 0:
        warnings.warn(
            f"{path} is a tensor without dimension in every replica: gathering gives a vector of "
            f"{len(outputs)} elements, one a replica. A loss computed inside the module has to be averaged, "
            "weighted by rows",
            stacklevel=2,
        )
        outputs, dim = [output.unsqueeze(0) for output in outputs], 0
    here = [output.to(physical(device), non_blocking=may_not_wait(device)) for output in outputs]
    try:
        return torch.cat(here, dim)
    except (RuntimeError, IndexError) as error:
        shapes = "; ".join(f"replica {i}: {tuple(output.shape)}" for i, output in enumerate(outputs))
        raise ValueError(
            f"{path} cannot be concatenated along dimension {dim} on {label(device)} ({shapes}): the other "
            "dimensions must agree. Sequences are padded to the length of the whole batch "
            "(total_length of pad_packed_sequence), not of the replica's part"
        ) from error


def _same_kind(outputs: list[Any], path: str) -> None:
    kinds = [torch.Tensor if isinstance(output, torch.Tensor) else type(output) for output in outputs]
    for replica, kind in enumerate(kinds):
        if kind is not kinds[0]:
            raise TypeError(
                f"{path} is {_a(outputs[0])} in replica 0 and {_a(outputs[replica])} in replica {replica}: "
                "every replica must return the same structure"
            )


def _same(outputs: list[Any], path: str, what: str, measure: Callable[[Any], Any]) -> None:
    for replica, output in enumerate(outputs):
        if measure(output) != measure(outputs[0]):
            raise ValueError(
                f"{path} differs between replicas in its {what}: {measure(outputs[0])} in replica 0 and "
                f"{measure(output)} in replica {replica}. Every replica must return the same structure"
            )


# --- containers ----------------------------------------------------------------------------------


def _field_names(value: Any) -> tuple[str, ...]:
    """The fields of a namedtuple, none of any other value."""
    return tuple(getattr(value, "_fields", ())) if isinstance(value, tuple) else ()


def _like(value: dict[Any, Any], items: Iterator[tuple[Any, Any]]) -> Any:
    """A dict of the value's own type with these items."""
    if isinstance(value, defaultdict):
        return type(value)(value.default_factory, items)
    return type(value)(items)


def _a(value: Any) -> str:
    """``an int``, ``a Tensor``: the kind of a value in an error message."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"

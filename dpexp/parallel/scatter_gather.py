"""Scatter: one batch becomes a chunk for each device. Gather: the chunks' outputs become one output.

Ten rows over three devices, along dimension 0::

    rows 0 1 2 3 4 5 6 7 8 9          cpu:0  [0 1 2 3] ─┐
         └─────┘ └─────┘ └─┘  scatter cpu:1  [4 5 6 7] ─┼─ gather ──► 0 1 2 3 4 5 6 7 8 9
                                      cpu:2  [8 9]     ─┘

The chunks are those of ``Tensor.chunk``: equal but for the last one, and fewer than the devices when
there are too few rows (10 over 8 are five chunks of 2). Both enter dict, list, tuple and namedtuple and
keep their types; both are differentiable, twice too. Zero rows make an empty chunk for each device.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dpexp.config.words import plural
from dpexp.devices import HOST, label, non_blocking_to
from dpexp.tensors import entries, leaves, rebuild

DeviceId = int | str | torch.device
"""A device as users write it: ``0``, ``"cuda:1"``, ``torch.device("cpu", 3)``."""


def to_device(device: DeviceId) -> torch.device:
    """The ``torch.device``. An int is the index of an accelerator, -1 the host, as in torch.nn.parallel."""
    if device == -1:
        return HOST
    found = torch.device(device)
    if found.type in ("cpu", "meta") or found.index is not None:
        return found
    return torch.device(found.type, torch.accelerator.current_device_index())


def chunk_sizes(batch_size: int, count: int) -> list[int]:
    """Rows of each chunk of a batch over ``count`` devices, as ``Tensor.chunk`` splits it.

    ``chunk_sizes(30, 8)`` is ``[4, 4, 4, 4, 4, 4, 4, 2]``, ``chunk_sizes(10, 8)`` is ``[2, 2, 2, 2, 2]``.
    """
    if batch_size == 0:
        return [0] * count
    size = -(-batch_size // count)
    return [min(size, batch_size - first) for first in range(0, batch_size, size)]


def scatter(inputs: Any, devices: Sequence[DeviceId], dim: int = 0) -> Any:
    """One chunk of ``inputs`` for each device, or for each of the first few if there are fewer rows.

    A tensor ``(batch, …)`` gives a tuple of tensors ``(rows, …)``, each copied to its device; a container
    gives a list of containers. Anything else (None, numbers, strings, empty containers, dataclasses) goes
    to every device by reference. A tensor of one row beside others of many, which broadcasts over the
    batch as positions and masks do, is copied to every device.

    Raises ValueError where tensors have different batch sizes, no dimension ``dim`` or none at all.
    """
    placed = list(map(to_device, devices))
    chunks = _scatter(inputs, placed, _chunk_count({"inputs": inputs}, placed, dim), dim)
    return tuple(chunks) if isinstance(inputs, torch.Tensor) else chunks


def scatter_kwargs(
    inputs: Any, kwargs: dict[str, Any] | None, devices: Sequence[DeviceId], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Positional and keyword arguments together, with an equal number of chunks.

    Two tuples, of ``(args, …)`` and of ``({name: value}, …)``, an entry for each chunk of the batch;
    both empty when there are no arguments. Raises as ``scatter`` does.
    """
    placed = list(map(to_device, devices))
    if not inputs and not kwargs:
        return (), ()
    count = _chunk_count({"inputs": inputs, **(kwargs or {})}, placed, dim)
    return (
        tuple(_scatter(inputs, placed, count, dim) if inputs else [()] * count),
        tuple(_scatter(kwargs, placed, count, dim) if kwargs else ({} for _ in range(count))),
    )


def check_batch_sizes(args: tuple[Any, ...], kwargs: dict[str, Any], devices: Sequence[DeviceId]) -> None:
    """Raises ValueError for arguments of a call that ``scatter_kwargs`` would refuse."""
    _chunk_count({"inputs": args, **kwargs}, list(map(to_device, devices)), 0)


def is_container(value: Any) -> bool:
    """Whether the entries of the value are scattered."""
    return isinstance(value, dict | list | tuple) and not isinstance(value, PackedSequence)


def _chunk_count(arguments: dict[str, Any], devices: Sequence[torch.device], dim: int) -> int:
    sizes: dict[str, int] = {}  # by path: {"inputs[0]": 10, "mask": 10}
    for name, argument in arguments.items():
        for path, leaf in leaves(argument, name, lambda value: not is_container(value)):
            if isinstance(leaf, PackedSequence):
                raise ValueError(
                    f"{path} is a PackedSequence, which has no batch dimension to split: pass the padded "
                    "batch and the lengths, and pack inside the module's forward"
                )
            if not isinstance(leaf, torch.Tensor):
                continue
            if not -leaf.dim() <= dim < leaf.dim():
                raise ValueError(
                    f"{path} cannot be split along dimension {dim}, its shape is {tuple(leaf.shape)}: "
                    "give it a batch dimension (x.expand(batch_size)), or pass a number, "
                    "which goes to every device as it is"
                )
            sizes[path] = leaf.size(dim)
    of_many = {path: size for path, size in sizes.items() if size != 1} or sizes
    for path, size in of_many.items():
        first = next(iter(of_many))
        if size != of_many[first]:
            raise ValueError(
                f"{path} has {size} rows and {first} has {of_many[first]}: tensors are split over "
                f"{', '.join(map(label, devices))} together and must have the same batch size. Expand the "
                "smaller one, or pass what every device needs in full inside a dataclass, which is not split"
            )
    return len(chunk_sizes(next(iter(of_many.values())), len(devices))) if sizes else len(devices)


def _scatter(value: Any, devices: Sequence[torch.device], count: int, dim: int) -> list[Any]:
    if isinstance(value, torch.Tensor):
        broadcasts = count > 1 and value.size(dim) == 1  # over the rows of the other tensors
        chunks = [value] * count if broadcasts else value.chunk(len(devices), dim)
        return [
            non_blocking_to(chunk, device, copy=True) for chunk, device in zip(chunks, devices, strict=False)
        ]
    if not is_container(value) or not value:
        return [value] * count
    columns = [_scatter(entry, devices, count, dim) for _, entry in entries(value) or ()]
    return [rebuild(value, row) for row in zip(*columns, strict=True)]


def gather(outputs: Sequence[Any], target_device: DeviceId, dim: int = 0) -> Any:
    """One output on the target device, from the outputs of all replicas: the inverse of ``scatter``.

    Tensors ``(rows, …)`` are concatenated along ``dim`` to ``(batch, …)``; tensors without dimension
    become a vector, an element per replica, with a warning. None stays None. Dicts, lists, tuples,
    namedtuples and dataclasses are gathered entry by entry and keep their type.

    Raises TypeError for values that cannot be gathered (numbers, strings), and ValueError where replicas
    differ in types, keys or lengths; the message names the entry.
    """
    return _gather(list(outputs), to_device(target_device), dim, "output")


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first, kinds = outputs[0], list(map(_kind, outputs))
    for replica, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(
                f"{path} is {kinds[0]} in replica 0 and {kind} in replica {replica}: "
                "every replica must return the same structure"
            )
    if isinstance(first, torch.Tensor):
        return _concatenate(outputs, device, dim, path)
    if first is None:
        return None
    if isinstance(first, PackedSequence):
        raise TypeError(
            f"{path} is a PackedSequence, which cannot be gathered: unpack it inside the module's forward, "
            "with pad_packed_sequence(…, total_length=…) so that every replica pads to the same length"
        )
    if isinstance(first, Mapping):
        outputs = [{key: output[key] for key in first} for output in outputs]
    of_replicas = [entries(output) for output in outputs]
    if of_replicas[0] is None:
        raise TypeError(
            f"{path} is {kinds[0]} ({first!r:.60}), which cannot be joined from {len(outputs)} replicas: "
            "return tensors with a batch dimension, None, or containers of them. A number of each replica is "
            "torch.tensor([number]); what is the same for all belongs outside of the wrapped module"
        )
    columns = zip(*of_replicas, strict=True)
    return rebuild(
        first,
        [_gather([entry for _, entry in column], device, dim, path + column[0][0]) for column in columns],
    )


def _kind(output: Any) -> str:
    """What must be the same in all replicas: ``a Tensor of 2 dimensions``, ``a dict of 'a', 'b'``."""
    if output is None:
        return "None"
    name = "Tensor" if isinstance(output, torch.Tensor) else type(output).__name__
    text = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    if isinstance(output, torch.Tensor):
        return f"{text} of {plural(output.dim(), 'dimension')}"
    if isinstance(output, Mapping):
        return f"{text} of {', '.join(sorted(map(repr, output)))}"
    return f"{text} of length {len(output)}" if isinstance(output, list | tuple) else text


def _concatenate(outputs: list[torch.Tensor], device: torch.device, dim: int, path: str) -> torch.Tensor:
    if outputs[0].dim() == 0:
        warnings.warn(
            f"{path} is a tensor without dimension in every replica: gathering gives a vector of "
            f"{len(outputs)} elements, one per replica. A loss computed inside the module has to be "
            "averaged, weighted by rows",
            stacklevel=2,
        )
        outputs, dim = [output.unsqueeze(0) for output in outputs], 0
    for replica, output in enumerate(outputs):
        if _without(dim, output.shape) != _without(dim, outputs[0].shape):
            raise ValueError(
                f"{path} has shape {tuple(outputs[0].shape)} in replica 0 and {tuple(output.shape)} in "
                f"replica {replica}, and dimension {dim} joins them. Sequences that each replica pads to its "
                "longest one need the length of the batch: pad_packed_sequence(..., total_length=x.size(1))"
            )
    return torch.cat([non_blocking_to(output, device) for output in outputs], dim)


def _without(dim: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(size for index, size in enumerate(shape) if index != dim % len(shape))

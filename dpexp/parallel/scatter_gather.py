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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dpexp.config.errors import plural
from dpexp.devices import HOST, label, non_blocking_to
from dpexp.tensors import entries, leaves, rebuild

DeviceId = int | str | torch.device
"""A device as users write it: ``0``, ``"cuda:1"``, ``torch.device("cpu", 3)``."""


def to_device(device: DeviceId) -> torch.device:
    """The ``torch.device``. An int is the index of an accelerator, -1 the host, as in torch.nn.parallel.

    Raises ValueError for an index on a machine without an accelerator: virtual devices have no int.
    """
    if isinstance(device, torch.device | str):
        device = torch.device(device)
        if device.type in ("cpu", "meta") or device.index is not None:
            return device
        return torch.device(device.type, torch.accelerator.current_device_index())
    if device == -1:
        return HOST
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        raise ValueError(
            f"device {device} is the index of an accelerator, and this machine has none: "
            f"torch.device('cpu', {device}) is virtual device {device} (dpexp.devices.virtual(n) makes n)"
        )
    return torch.device(kind.type, device)


def to_devices(devices: Sequence[DeviceId]) -> list[torch.device]:
    """``to_device`` of each; a device may occur twice. Raises ValueError for an empty list."""
    if not devices:
        raise ValueError("no devices given: name at least one, as [torch.device('cpu', 0)]")
    return list(map(to_device, devices))


def chunk_sizes(batch_size: int, devices: int | Sequence[DeviceId]) -> list[int]:
    """Rows of each chunk of a batch over the devices, or over so many, as ``Tensor.chunk`` splits it.

    ``chunk_sizes(30, 8)`` is ``[4, 4, 4, 4, 4, 4, 4, 2]``, ``chunk_sizes(10, 8)`` is ``[2, 2, 2, 2, 2]``.
    """
    count = devices if isinstance(devices, int) else len(devices)
    if batch_size < 0 or count < 1:
        raise ValueError(
            f"{plural(batch_size, 'row')} over {plural(count, 'device')}: rows are at least 0, "
            "devices at least 1"
        )
    if batch_size == 0:
        return [0] * count
    size = -(-batch_size // count)
    full, rest = divmod(batch_size, size)
    return [size] * full + [rest] * (rest > 0)


# --- scatter -------------------------------------------------------------------------------------


def scatter(inputs: Any, devices: Sequence[DeviceId], dim: int = 0) -> Any:
    """One chunk of ``inputs`` for each device, or for each of the first few if there are fewer rows.

    A tensor ``(batch, …)`` gives a tuple of tensors ``(rows, …)``, each copied to its device; a container
    gives a list of containers. Anything else (None, numbers, strings, empty containers, dataclasses) goes
    to every device by reference. A tensor of one row beside others of many, which broadcasts over the
    batch as positions and masks do, is copied to every device.

    Raises ValueError where tensors have different batch sizes, no dimension ``dim`` or none at all.
    """
    placed = to_devices(devices)
    chunks = _scatter(inputs, placed, _chunk_count(_batch_sizes({"inputs": inputs}, dim), placed), dim)
    return tuple(chunks) if isinstance(inputs, torch.Tensor) else chunks


def check_batch_sizes(args: tuple[Any, ...], kwargs: dict[str, Any], devices: Sequence[DeviceId]) -> None:
    """Raises ValueError for arguments of a call that ``scatter_kwargs`` would refuse."""
    _chunk_count(_batch_sizes({"inputs": args, **kwargs}, 0), to_devices(devices))


def scatter_kwargs(
    inputs: Any, kwargs: dict[str, Any] | None, devices: Sequence[DeviceId], dim: int = 0
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Positional and keyword arguments together, with an equal number of chunks.

    Two tuples, of ``(args, …)`` and of ``({name: value}, …)``, an entry for each chunk of the batch;
    both empty when there are no arguments. Raises as ``scatter`` does.
    """
    placed = to_devices(devices)
    if not inputs and not kwargs:
        return (), ()
    count = _chunk_count(_batch_sizes({"inputs": inputs, **(kwargs or {})}, dim), placed)
    return (
        tuple(_scatter(inputs, placed, count, dim) if inputs else [()] * count),
        tuple(_scatter(kwargs, placed, count, dim) if kwargs else ({} for _ in range(count))),
    )


def _is_container(value: Any) -> bool:
    """Whether the entries of the value are scattered."""
    return isinstance(value, dict | list | tuple) and not isinstance(value, PackedSequence)


def _batch_sizes(arguments: dict[str, Any], dim: int) -> dict[str, int]:
    """The batch size of every tensor, by its path: ``{"inputs[0]": 10, "mask": 10}``."""
    sizes: dict[str, int] = {}
    for name, argument in arguments.items():
        for path, leaf in leaves(argument, name, lambda value: not _is_container(value)):
            if isinstance(leaf, PackedSequence):
                raise ValueError(
                    f"{path} is a PackedSequence, which has no batch dimension to split: pass the padded "
                    "batch and the lengths, and pack inside the module's forward"
                )
            if isinstance(leaf, torch.Tensor):
                if not -leaf.dim() <= dim < leaf.dim():
                    raise ValueError(
                        f"{path} cannot be split along dimension {dim}, its shape is {tuple(leaf.shape)}: "
                        "give it a batch dimension (x.expand(batch_size)), or pass a number, "
                        "which goes to every device as it is"
                    )
                sizes[path] = leaf.size(dim)
    return sizes


def _chunk_count(sizes: dict[str, int], devices: Sequence[torch.device]) -> int:
    """The number of chunks, the same for every argument. Raises ValueError for different batch sizes."""
    if not sizes:
        return len(devices)
    (first, size), *others = ({path: n for path, n in sizes.items() if n != 1} or sizes).items()
    for path, other in others:
        if other != size:
            raise ValueError(
                f"{path} has {other} rows and {first} has {size}: tensors are split over "
                f"{', '.join(map(label, devices))} together and must have the same batch size. Expand the "
                "smaller one, or pass what every device needs in full inside a dataclass, which is not split"
            )
    return len(chunk_sizes(size, devices))


def _scatter(value: Any, devices: Sequence[torch.device], count: int, dim: int) -> list[Any]:
    """The value's ``count`` chunks."""
    if isinstance(value, torch.Tensor):
        broadcasts = count > 1 and value.size(dim) == 1  # over the rows of the other tensors
        chunks = [value] * count if broadcasts else value.chunk(len(devices), dim)
        return [
            non_blocking_to(chunk, device, copy=True) for chunk, device in zip(chunks, devices, strict=False)
        ]
    if not _is_container(value) or not value:
        return [value] * count
    columns = [_scatter(entry, devices, count, dim) for _, entry in entries(value) or ()]
    return [rebuild(value, row) for row in zip(*columns, strict=True)]


# --- gather --------------------------------------------------------------------------------------


def gather(outputs: Sequence[Any], target_device: DeviceId, dim: int = 0) -> Any:
    """One output on the target device, from the outputs of all replicas: the inverse of ``scatter``.

    Tensors ``(rows, …)`` are concatenated along ``dim`` to ``(batch, …)``; tensors without dimension
    become a vector, an element a replica, with a warning. None stays None. Dicts, lists, tuples,
    namedtuples and dataclasses are gathered entry by entry and keep their type.

    Raises TypeError for values that cannot be gathered (numbers, strings) or differ in type between
    replicas, and ValueError for different keys, lengths or shapes; the message names the entry.
    """
    if not outputs:
        raise ValueError("nothing to gather: there is no output of any replica")
    return _gather(list(outputs), to_device(target_device), dim, "output")


def _gather(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    _check_same_type(outputs, path)
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
        _check_same(outputs, path, "keys", lambda output: sorted(map(repr, output)))
        outputs = [{key: output[key] for key in first} for output in outputs]
    elif isinstance(first, list | tuple):
        _check_same(outputs, path, "length", len)
    of_replicas = [entries(output) for output in outputs]
    if of_replicas[0] is None:
        raise TypeError(
            f"{path} is {_a(first)} ({first!r:.60}), which cannot be joined from {len(outputs)} replicas: "
            "return tensors with a batch dimension, None, or containers of them. A number a replica is "
            "torch.tensor([number]); what is the same for all belongs outside of the wrapped module"
        )
    columns = zip(*of_replicas, strict=True)
    return rebuild(
        first,
        [_gather([entry for _, entry in column], device, dim, path + column[0][0]) for column in columns],
    )


def _concatenate(outputs: list[torch.Tensor], device: torch.device, dim: int, path: str) -> torch.Tensor:
    _check_same(outputs, path, "number of dimensions", torch.Tensor.dim)
    if outputs[0].dim() == 0:
        warnings.warn(
            f"{path} is a tensor without dimension in every replica: gathering gives a vector of "
            f"{len(outputs)} elements, one a replica. A loss computed inside the module has to be averaged, "
            "weighted by rows",
            stacklevel=2,
        )
        outputs, dim = [output.unsqueeze(0) for output in outputs], 0
    moved = [non_blocking_to(output, device) for output in outputs]
    try:
        return torch.cat(moved, dim)
    except (RuntimeError, IndexError) as error:
        shapes = "; ".join(f"replica {i}: {tuple(output.shape)}" for i, output in enumerate(outputs))
        raise ValueError(
            f"{path} cannot be concatenated along dimension {dim} on {label(device)} ({shapes}): the other "
            "dimensions must agree. Pad sequences to the length of the whole batch "
            "(total_length of pad_packed_sequence), not of the replica's part"
        ) from error


def _check_same_type(outputs: list[Any], path: str) -> None:
    types = [torch.Tensor if isinstance(output, torch.Tensor) else type(output) for output in outputs]
    for replica, type_ in enumerate(types):
        if type_ is not types[0]:
            raise TypeError(
                f"{path} is {_a(outputs[0])} in replica 0 and {_a(outputs[replica])} in replica {replica}: "
                "every replica must return the same structure"
            )


def _check_same(outputs: list[Any], path: str, what: str, measure: Callable[[Any], Any]) -> None:
    for replica, output in enumerate(outputs):
        if measure(output) != measure(outputs[0]):
            raise ValueError(
                f"{path} differs between replicas in its {what}: {measure(outputs[0])} in replica 0 and "
                f"{measure(output)} in replica {replica}. Every replica must return the same structure"
            )


def _a(value: Any) -> str:
    """``an int``, ``a Tensor``: the type of a value in an error message."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"

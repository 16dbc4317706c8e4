"""Mapped tables: embedding tables in files that are mapped into memory, and may be larger than it.

    row of a table --> page of a file --> the kernel's page cache, which gives up pages that nobody uses

A file lives as long as its table, as memory does: it has no name, so that nothing is left however the process
ends, and no other run can train it. Its space is taken from the disk when it is made: a full disk is an
error before the run opens, and not a signal that kills it later.

    with MappedTables(folder) as tables:    ``torch.empty`` gives large matrices that lie in files, and what
        model = Model()                     draws their values works on a chunk at a time
    tables.settle(model, embeddings)        exactly the weights of these lie in files
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dpexp.config.errors import ConfigError

_LARGE = 1 << 20
"""Numbers from which on a matrix is made in a file; smaller tables are copied to one."""

_CHUNK = 1 << 22
"""Numbers that are drawn at once."""
_BLOCK = 16
"""``normal_`` draws in blocks of so many: chunks of several, and of one at least, get what a table gets."""

_FILLS: Collection[Any] = (
    *(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.fill_, torch.Tensor.zero_),
    *(nn.init.normal_, nn.init.uniform_, nn.init.constant_, nn.init.zeros_, nn.init.ones_),
)
"""What computes each number of a tensor by itself, in their order."""


class MappedTables(TorchFunctionMode):
    """Makes large matrices in files of a folder while a model is built. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._mappings: dict[int, mmap.mmap] = {}
        """By the address of their tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and str(kwargs.get("device") or "cpu") == "cpu" and "out" not in kwargs:
            made = torch.empty(*args, **kwargs | {"device": "meta"})
            if made.dim() == 2 and made.dtype is torch.float32 and made.numel() >= _LARGE:
                return self._new(made.shape)
        if func in _FILLS:
            tensor, *rest = args or (kwargs.pop("tensor"),)  # by name from torch.nn.init
            return self._filled(func, tensor, *rest, **kwargs)
        return func(*args, **kwargs)

    def settle(self, model: nn.Module, tables: Collection[nn.Module]) -> None:
        """Move the weights of these tables to files, and all other parameters and buffers to memory."""
        weights = {id(table.weight) for table in tables}
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                in_file = tensor.untyped_storage().data_ptr() in self._mappings
                if id(tensor) in weights:
                    if not in_file:
                        tensor.data = self._new(tensor.shape).copy_(tensor)
                    tensor.mapped = True  # type: ignore[attr-defined]
                elif in_file:
                    tensor.data = tensor.clone()
        self._mappings.clear()  # a mapping ends with the last tensor in it

    def _new(self, shape: torch.Size) -> torch.Tensor:
        size = prod(shape) * torch.float32.itemsize
        try:
            with file_in(self._folder) as file:
                free = shutil.disk_usage(file.fileno()).free
                if size > free:
                    raise ConfigError(
                        f"--table-file {self._folder}: a table of {tuple(shape)} takes {amount(size)}, "
                        f"and {amount(free)} are free: name a folder on a larger disk, or take fewer "
                        "rows"
                    )
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:  # macOS
                    file.truncate(size)
                mapping = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise ConfigError(
                f"--table-file {self._folder}: a table of {tuple(shape)} cannot be made there: {error}"
            ) from error
        made = torch.frombuffer(mapping, dtype=torch.float32).view(shape)
        self._mappings[made.data_ptr()] = mapping
        return made

    def _filled(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The tensor, filled by ``func``: one that lies in a file a chunk at a time."""
        mapping = self._mappings.get(tensor.untyped_storage().data_ptr())
        if mapping is None or not tensor.is_contiguous():
            func(tensor, *args, **kwargs)
            return tensor
        flat = tensor.detach().view(-1)
        for start, stop in _chunks(len(flat)):
            func(flat[start:stop], *args, **kwargs)
            if hasattr(mmap, "MADV_DONTNEED"):  # the page cache writes them to the file in its time
                mapping.madvise(mmap.MADV_DONTNEED)
        return tensor


def check_table_file(
    folder: str, tables: Collection[nn.Module], *, has_ranks: bool, dtype: str, has_dense_gradients: bool
) -> None:
    """Raises ConfigError where ``--table-file`` has no tables to keep, or a run would need them in memory."""
    flag = f"--table-file {folder}"
    if not tables:
        raise ConfigError(f"{flag}: the host modules have no embedding; name with --host one that has")
    if has_ranks:
        raise ConfigError(f"{flag} is for a run of one process; ranks split tables with --shard-embedding")
    if dtype != "float32":
        raise ConfigError(f"{flag} keeps tables as float32, found --dtype {dtype}")
    if has_dense_gradients:
        raise ConfigError(f"{flag}: a dense gradient takes as much memory as its table; give --sparse")


def file_in(folder: Path) -> IO[bytes]:
    """A new file without a name in a folder; of one that is missing, in the folder where it would be made.

    Raises OSError.
    """
    return tempfile.TemporaryFile(dir=next(each for each in (folder, *folder.parents) if each.exists()))


def amount(count: int) -> str:
    """``12.8 MB``, ``4.1 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _chunks(numbers: int) -> Iterator[tuple[int, int]]:
    """(first, end) of each chunk; a last one of less than a block belongs to the one before."""
    start = 0
    while start < numbers:
        stop = start + _CHUNK if numbers - start - _CHUNK >= _BLOCK else numbers
        yield start, stop
        start = stop

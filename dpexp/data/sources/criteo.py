"""Criteo: a log of clicks in the format of Criteo's data sets, read from its file as a stream.

    label, 13 integers, 26 categories in hexadecimal, with tabs between; an integer or a category may be empty

One pass over the file counts its lines, computes their digest, and notes where some of them begin. After it,
only the lines of a batch are in memory. The order is that of the file, in every epoch: a shuffled order of a
file that does not fit in memory would read a block of the disk for each line.

An integer x becomes log(1 + x), with 0 for an empty or a negative one. A category becomes a row of its table:
``mix(category + (column << 33)) % rows``, with -1 for an empty one.

Source of the features: Naumov et al., "Deep learning recommendation model for personalization and
recommendation systems", 2019; of ``mix``: ``rng.py``.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from dpexp.config.errors import ConfigError, no_file, shown
from dpexp.config.features import Features
from dpexp.config.ranges import plural
from dpexp.data.base import Source
from dpexp.data.dataset import Dataset, Fetch
from dpexp.data.rng import mix

INTEGERS, _CATEGORIES = 13, 26
_BLOCK = 1 << 20
"""Bytes of lines that the pass over the file has in memory at once."""
LONGEST = 1 << 12
"""Bytes of a line that are looked at: a file of another format may have no end of a line."""
_GZIP = b"\x1f\x8b"
_FORMS = (
    ("label", "0 or 1", re.compile(rb"[01]")),
    *[("integer", "empty or an integer", re.compile(rb"(?:-?[0-9]{1,18})?"))] * INTEGERS,
    *[("category", "empty or up to 8 hexadecimal digits", re.compile(rb"[0-9a-fA-F]{0,8}"))] * _CATEGORIES,
)
"""What each field is, and how it may look."""
_LINE = re.compile(b"\t".join(form.pattern for *_, form in _FORMS))


class CriteoSource(Source):
    """``criteo:FILE``: a text file, or one that gzip has compressed."""

    def __init__(self, where: str, argument: str, rows: int) -> None:
        super().__init__(where)
        self.log = ClickLog(Path(argument).expanduser(), where)
        self.rows = rows
        self.log.check()
        self.features = Features("clicks", (INTEGERS,), vocabulary=rows, tables=_CATEGORIES)

    def dataset(self, model: nn.Module, seed: int) -> CriteoDataset:
        self.view_for(model)
        lines = plural(self.log.index.lines, "line")
        description = f"{lines} of {self.log.path}, in their order, ids below {self.rows}"
        return CriteoDataset("criteo", description, self.objective(model), None, self.log, self.rows)


@dataclass(eq=False, repr=False)
class CriteoDataset(Dataset):
    """Features ``(batch, 13)``, ids ``(batch, 26)`` -> clicks ``(batch,)``, 0.0 or 1.0; never shuffled."""

    is_stream = True

    log: ClickLog
    rows: int
    dtype: torch.dtype = torch.float32

    @property
    def samples(self) -> int:
        return self.log.index.lines

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the lines."""
        return self.log.index.sha256

    def to(self, dtype: torch.dtype) -> CriteoDataset:
        return dataclasses.replace(self, dtype=dtype)

    @contextmanager
    def reading(self, first: int) -> Iterator[Fetch]:
        """The lines that other ranks compute are read but not parsed."""
        with self.log.lines_from(first) as lines:
            position = first

            def fetch(wanted: Tensor | slice) -> tuple[tuple[Tensor, Tensor], Tensor]:
                nonlocal position
                assert isinstance(wanted, slice)
                found = list(islice(lines, wanted.start - position, wanted.stop - position))
                position = wanted.stop
                return self._tensors(found, wanted)

            yield fetch

    def _tensors(self, lines: Sequence[bytes], wanted: slice) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Inputs and targets of the lines that were wanted."""
        if len(lines) < wanted.stop - wanted.start:
            raise self.log.changed()
        parsed = [self.log.fields(line, number) for number, line in enumerate(lines, wanted.start + 1)]
        targets = torch.tensor([float(fields[0]) for fields in parsed], dtype=self.dtype)
        integers = [[int(each or 0) for each in fields[1 : 1 + INTEGERS]] for fields in parsed]
        categories = [[int(each, 16) if each else -1 for each in fields[1 + INTEGERS :]] for fields in parsed]
        dense = torch.tensor(integers, dtype=torch.float64).clamp(min=0).log1p().to(self.dtype)
        return (dense, hashed(torch.tensor(categories), self.rows)), targets


def hashed(categories: Tensor, rows: int) -> Tensor:
    """Categories ``(batch, columns)`` below 2**32, or -1 -> rows of tables of this size."""
    columns = torch.arange(categories.shape[1]) << 33  # apart: equal categories of two columns differ
    return mix(categories + columns) % rows


@dataclass(frozen=True)
class Index:
    """What one pass over a file finds. ``marks`` are (number of lines before it, where it begins)."""

    lines: int
    sha256: str
    last: bytes
    marks: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class ClickLog:
    """The lines of a file. ``where`` starts the messages of errors."""

    path: Path
    where: str
    _state: tuple[int, ...] = dataclasses.field(default=(), init=False)
    """Of the file when its lines were read last; with the same one they are the same."""

    def check(self) -> None:
        """Raises ConfigError for a file that is missing, empty or of another format in its first line."""
        if not self.path.is_file():
            if not self.path.exists():
                raise ConfigError(f"{self.where}: {no_file(self.path)}")
            raise ConfigError(f"{self.where}: {self.path} is not a regular file")
        with self._open() as file:
            line = file.readline(LONGEST)
        if not line:
            raise ConfigError(f"{self.where}: {self.path} is empty")
        self.fields(line, 1)

    @cached_property
    def index(self) -> Index:
        """Of the file as it is when a run is prepared."""
        self._state = self._state_now()
        found = self._scan()
        self.fields(found.last, found.lines)  # the one that an interrupted download cuts
        return found

    def _scan(self, most: int = sys.maxsize) -> Index:
        """One pass over the file, or over so many lines of it."""
        sha, count, position, marks, last = hashlib.sha256(), 0, 0, [], b""
        with self._open() as file:
            while lines := file.readlines(_BLOCK)[: most - count]:
                marks.append((count, position))
                block, last = b"".join(lines), lines[-1]
                sha.update(block)
                count, position = count + len(lines), position + len(block)
        return Index(count, sha.hexdigest(), last, tuple(marks))

    def _state_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise ConfigError(f"{self.where}: {self.path} cannot be read: {error}") from error
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _check_lines(self) -> None:
        """Raises ConfigError where the file no longer begins with the lines of the index."""
        known, state = self.index, self._state_now()
        if state != self._state and self._scan(known.lines).sha256 != known.sha256:
            raise self.changed()
        self._state = state

    def changed(self) -> ConfigError:
        return ConfigError(
            f"{self.where}: {self.path} has changed: it no longer begins with the "
            f"{plural(self.index.lines, 'line')} that it had when the run began; "
            "let a run read a file that nobody writes"
        )

    @contextmanager
    def lines_from(self, number: int) -> Iterator[Iterator[bytes]]:
        """The lines after the first ``number``. In a compressed file, what is before them is read again.

        Raises ConfigError where a line that the digest covers has changed; more lines may follow.
        """
        self._check_lines()
        count, position = max(mark for mark in self.index.marks if mark[0] <= number)
        with self._open() as file:
            file.seek(position)
            yield islice(file, number - count, None)

    def fields(self, line: bytes, number: int) -> list[bytes]:
        """The fields of a line. Raises ConfigError that says which of them is wrong."""
        line = line.rstrip(b"\r\n")
        fields = line.split(b"\t")
        if _LINE.fullmatch(line):
            return fields
        where = f"{self.where}: line {number} of {self.path}"
        if len(fields) != len(_FORMS):
            raise ConfigError(
                f"{where} has {plural(len(fields), 'field')}, found {_text(line)}: a line of "
                f"Criteo's format has {len(_FORMS)}, a label, {INTEGERS} integers and {_CATEGORIES} "
                "categories, with tabs between"
            )
        for column, (field, (what, form, pattern)) in enumerate(zip(fields, _FORMS, strict=True), 1):
            if not pattern.fullmatch(field):
                raise ConfigError(
                    f"{where}: field {column}, the {what}, must be {form}, found {_text(field)}"
                )
        raise AssertionError("a line is right where its fields are")

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The file's lines as they are without compression. Raises ConfigError where they cannot be read."""
        try:
            with open(self.path, "rb") as raw:
                is_compressed = raw.read(2) == _GZIP
                raw.seek(0)
                with gzip.GzipFile(fileobj=raw) if is_compressed else raw as file:
                    yield file  # type: ignore[misc]
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{self.where}: {self.path} cannot be read: {error}") from error


def _text(field: bytes) -> str:
    return shown(field.decode(errors="replace")[:80])

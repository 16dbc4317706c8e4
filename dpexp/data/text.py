"""Text: bytes as ids from 0 to 255, the next byte as the target. No tokenizer, any encoding, any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config import ConfigError
from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import Batch, Dataset
from dpexp.data.objective import Objective

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

BYTES = 256
PIECE = 1 << 24
"""Bytes that are in memory at once while the digest is computed."""
SUFFIXES = (".txt", ".md", ".rst", ".py", ".csv", ".json", ".html", ".xml", ".tex", ".org", ".log")
"""What counts as a text file in a folder; a file that is named itself may be anything."""


class TextSource(Source):
    """``text:PATH``: a file, or the text files below a folder in the order of their paths."""

    def __init__(self, where: str, argument: str, length: int) -> None:
        super().__init__(where)
        self.path = Path(argument).expanduser()
        self.length = length
        self.files = self._found()
        size = sum(file.stat().st_size for file in self.files)
        if size == 0:
            raise ConfigError(f"{where}: {self.path} is empty")
        if size <= length:
            raise ConfigError(
                f"{where}: {self.path} has {size} bytes; length={length} needs at least {length + 1}, "
                "for a sample and its last target"
            )
        self.features = Features("ids", (length,), classes=BYTES, vocabulary=BYTES, stepwise=True)

    def _found(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        if not self.path.is_dir():
            raise ConfigError(f"{self.where}: there is no file or folder {self.path}")
        files = sorted(f for f in self.path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if not files:
            raise ConfigError(f"{self.where}: no text file in {self.path} (looked for {' '.join(SUFFIXES)})")
        return files

    def dataset(self, model: nn.Module, seed: int) -> TextDataset:
        assert self.features is not None
        parts = [_mapped(file) for file in self.files if file.stat().st_size]
        text = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.suits(model, self.features)
        files = "1 file" if len(self.files) == 1 else f"{len(self.files)} files"
        description = f"{len(text)} bytes of {self.path} ({files}), {self.length} a sample"
        return TextDataset(
            text, self.length, description, self.features, self.objective(model, self.features)
        )


class TextDataset(Dataset):
    """Windows of ``length`` bytes that follow one another without overlap.

    The text stays as bytes, mapped from the disk when it is one file; only a batch becomes int64:
    inputs and targets ``(batch, length)``, the targets one byte further on.
    """

    def __init__(
        self, text: Bytes, length: int, description: str, features: Features, objective: Objective
    ) -> None:
        super().__init__("text", (len(text) - 1) // length, description, features, objective)
        self.text = text
        self.length = length
        self._window = np.arange(length + 1)

    def take(self, rows: Tensor | slice) -> Batch:
        starts = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy()
        windows = self.text[starts[:, np.newaxis] * self.length + self._window]
        ids = torch.from_numpy(windows).long()
        return Batch((ids[:, :-1],), ids[:, 1:], len(ids))

    def content(self) -> Iterator[Tensor]:
        for start in range(0, len(self.text), PIECE):
            yield torch.from_numpy(self.text[start : start + PIECE].copy())

    def to(self, dtype: torch.dtype) -> TextDataset:
        return self


def _mapped(file: Path) -> Bytes:
    """The file's bytes ``(size,)``, read from the disk as they are used."""
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))

"""Text: bytes as ids from 0 to 255; the target is the next byte. No tokenizer, any encoding, any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config.errors import ConfigError, no_file, plural
from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import Dataset

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

BYTES = 256
_CHUNK = 1 << 24
"""Bytes that are in memory at once while the digest is computed."""
SUFFIXES = (".txt", ".md", ".rst", ".py", ".csv", ".json", ".html", ".xml", ".tex", ".org", ".log")
"""The text files of a folder; a file that the user names may have any suffix."""


class TextSource(Source):
    """``text:PATH``: a file, or the text files below a folder in the order of their paths."""

    def __init__(self, where: str, path: str, length: int = 32) -> None:
        super().__init__(where)
        self.path = Path(path).expanduser()
        self.length = length
        self.files = self._find_files()
        size = sum(file.stat().st_size for file in self.files)
        if size <= length:
            raise ConfigError(
                f"{where}: {self.path} has {plural(size, 'byte')}; "
                f"length={length} needs at least {length + 1}, for a sample and its last target"
            )
        self.features = Features("ids", (length,), classes=BYTES, vocabulary=BYTES, stepwise=True)

    def _find_files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        if not self.path.exists():
            raise ConfigError(f"{self.where}: {no_file(self.path, 'file or folder')}")
        files = [path for path in self.path.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
        if not files:
            raise ConfigError(f"{self.where}: no text file in {self.path} (looked for {' '.join(SUFFIXES)})")
        return sorted(files)

    def dataset(self, model: nn.Module, seed: int) -> TextDataset:
        self.view_for(model)
        parts = [np.memmap(file, dtype=np.uint8, mode="r") for file in self.files if file.stat().st_size]
        text: _Bytes = np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
        files = plural(len(self.files), "file")
        description = f"{plural(len(text), 'byte')} of {self.path} ({files}), {self.length} a sample"
        return TextDataset("text", description, self.objective(model), None, text, self.length)


@dataclass(eq=False, repr=False)
class TextDataset(Dataset):
    """Windows of ``length`` bytes that follow one another without overlap.

    The text stays as bytes, mapped from the disk when it is one file; only a batch becomes int64:
    inputs and targets ``(batch, length)``, the targets one byte further on.
    """

    text: _Bytes
    length: int

    @property
    def samples(self) -> int:
        return (len(self.text) - 1) // self.length

    def fetch(self, indices: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        positions = indices.numpy()[:, np.newaxis] * self.length + np.arange(self.length + 1)
        ids = torch.from_numpy(self.text[positions]).long()
        return (ids[:, :-1],), ids[:, 1:]

    def digest_input(self) -> Iterator[Tensor]:
        for start in range(0, len(self.text), _CHUNK):
            yield torch.from_numpy(self.text[start : start + _CHUNK].copy())

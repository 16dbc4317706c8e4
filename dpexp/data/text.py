"""Text: bytes as ids from 0 to 255; the target is the next byte. No tokenizer, any encoding, any size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config.errors import ConfigError, no_file, plural
from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import Dataset, Samples

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

BYTES = 256
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

    def dataset(self, model: nn.Module, seed: int) -> Dataset:
        self.view_for(model)
        parts = [np.memmap(file, dtype=np.uint8, mode="r") for file in self.files if file.stat().st_size]
        text: _Bytes = np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)
        files = plural(len(self.files), "file")
        description = f"{plural(len(text), 'byte')} of {self.path} ({files}), {self.length} a sample"
        samples = Samples((len(text) - 1) // self.length, partial(windows, text, self.length))
        return Dataset("text", description, self.objective(model), samples)


def windows(text: _Bytes, length: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of ``length`` bytes that follow one another without overlap, and the same one byte further on.

    The text stays as bytes, mapped from the disk when it is one file; only a batch becomes int64.
    """
    positions = numbers.numpy()[:, np.newaxis] * length + np.arange(length + 1)
    ids = torch.from_numpy(text[positions]).long()
    return ids[:, :-1], ids[:, 1:]

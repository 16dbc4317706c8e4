"""Text: bytes as ids from 0 to 255; the target is the next byte. No tokenizer, any encoding, any size."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpexp.config.errors import ConfigError
from dpexp.config.features import Features
from dpexp.config.words import no_file, plural
from dpexp.data.base import Loaded, Source
from dpexp.data.dataset import Samples

BYTES = 256


class TextSource(Source):
    """``text:PATH``, a file. It stays as bytes, mapped from the disk; only a batch becomes int64."""

    name = "text"

    def __init__(self, where: str, path: str, length: int = 32) -> None:
        super().__init__(where)
        self.path, self.length = Path(path).expanduser(), length
        if not self.path.is_file():
            raise ConfigError(f"{where}: {no_file(self.path)}")
        size = self.path.stat().st_size
        if size <= length:
            raise ConfigError(
                f"{where}: {self.path} has {plural(size, 'byte')}; "
                f"length={length} needs at least {length + 1}, for a sample and its last target"
            )
        self.features = Features("ids", (length,), classes=BYTES, vocabulary=BYTES, stepwise=True)

    def load(self, model: nn.Module, seed: int) -> Loaded:
        """Windows of ids ``(batch, length)``, and the next byte of each."""
        text = np.memmap(self.path, dtype=np.uint8, mode="r")
        description = f"{plural(len(text), 'byte')} of {self.path}, {self.length} per sample"
        return Loaded(
            description, Samples((len(text) - 1) // self.length, partial(windows, text, self.length))
        )


def windows(text: Any, length: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Those of these numbers ``(batch,)``: ids ``(batch, length)``, and the same one byte further on."""
    positions = numbers.numpy()[:, np.newaxis] * length + np.arange(length + 1)
    ids = torch.from_numpy(text[positions]).long()
    return ids[:, :-1], ids[:, 1:]

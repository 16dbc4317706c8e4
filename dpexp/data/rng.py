"""Random numbers: generators, orders and hashes that are the same in every process for the same seed.

Each purpose has its own generator: what one purpose draws does not depend on how much another draws.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

STORED = 1 << 22
"""The order of up to so many samples is stored; of more samples, each index is computed when needed."""
_ROUNDS = 4
_LOW = (1 << 32) - 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose; those of different purposes and seeds are independent."""
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def seed_globals(seed: int) -> None:
    """Seed the global generators that user code draws from: those of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore the global generators of the host at the end."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(of_numpy)


def mix(bits: Tensor) -> Tensor:
    """Integers (int64) -> numbers below 2**32 that look random; equal inputs give equal outputs.

    The mixing function is that of Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        bits = (bits ^ ((bits >> 30) & _LOW)) * factor
    return (bits >> 32) & _LOW


class EpochOrder:
    """The order of one epoch: ``order[a:b]`` are the samples at positions a to b, each sample once.

    It is ``torch.randperm`` for up to ``stored`` samples. Beyond, a Feistel network over the next power of
    four maps a position to its sample, repeatedly until the result is a sample (Black, Rogaway, "Ciphers
    with arbitrary finite domains", 2002). A billion samples then take no memory, unlike those of a
    ``torch.utils.data.RandomSampler``.
    """

    def __init__(self, samples: int, seed: int, epoch: int, stored: int = STORED) -> None:
        rng = generator(seed, f"order of epoch {epoch}")
        self.samples = samples
        self._permutation: Tensor | None = None
        if samples <= stored:
            self._permutation = torch.randperm(samples, generator=rng)
        else:
            self._half = max(1, ((samples - 1).bit_length() + 1) // 2)
            self._keys = torch.randint(2**62, (_ROUNDS,), generator=rng)

    def __getitem__(self, positions: slice) -> Tensor:
        if self._permutation is not None:
            return self._permutation[positions]
        indices = self._feistel(torch.arange(positions.start, min(positions.stop, self.samples)))
        while bool((outside := indices >= self.samples).any()):
            indices = torch.where(outside, self._feistel(indices), indices)
        return indices

    def _feistel(self, positions: Tensor) -> Tensor:
        mask = (1 << self._half) - 1
        left, right = positions >> self._half, positions & mask
        for key in self._keys:
            left, right = right, left ^ (mix(right + key) & mask)
        return (left << self._half) | right

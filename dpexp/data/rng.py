"""Chance: generators, orders and hashes that are the same in every process for the same seed.

Each purpose has a generator of its own, so that nothing else that draws random numbers, and no
change in how much another purpose draws, can shift it.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

STORED = 1 << 22
"""Up to so many samples an order is a stored permutation; beyond, each index is computed when needed."""
_ROUNDS = 4
_LOW = (1 << 32) - 1


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose: different purposes and seeds are unrelated."""
    mixed = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)


def mix(bits: Tensor) -> Tensor:
    """Integers (int64) -> numbers below 2**32 that look random; equal inputs give equal outputs.

    The mixing is that of Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    for factor in (0x3F58476D1CE4E5B9, 0x14D049BB133111EB):
        bits = (bits ^ ((bits >> 30) & _LOW)) * factor
    return (bits >> 32) & _LOW


class Order:
    """The order of one epoch: ``order[a:b]`` are the samples at places a to b, each sample once.

    Short ones are ``torch.randperm``. In long ones a place is turned into its sample by a Feistel network
    over the next power of four, walked on until it lands among the samples (Black, Rogaway, "Ciphers
    with arbitrary finite domains", 2002), so that a billion samples take no memory.
    """

    def __init__(self, samples: int, seed: int, epoch: int, stored: int = STORED) -> None:
        draw = generator(seed, f"order of epoch {epoch}")
        self.samples = samples
        self._permutation: Tensor | None = None
        if samples <= stored:
            self._permutation = torch.randperm(samples, generator=draw)
        else:
            self._half = max(1, ((samples - 1).bit_length() + 1) // 2)
            self._keys = torch.randint(2**62, (_ROUNDS,), generator=draw)

    def __getitem__(self, places: slice) -> Tensor:
        if self._permutation is not None:
            return self._permutation[places]
        found = self._feistel(torch.arange(places.start, min(places.stop, self.samples)))
        while bool((outside := found >= self.samples).any()):
            found = torch.where(outside, self._feistel(found), found)
        return found

    def _feistel(self, places: Tensor) -> Tensor:
        mask = (1 << self._half) - 1
        left, right = places >> self._half, places & mask
        for key in self._keys:
            left, right = right, left ^ (mix(right + key) & mask)
        return (left << self._half) | right

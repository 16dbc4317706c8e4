"""Random numbers: generators and orders that are the same in every process for the same seed.

Each purpose has its own generator: what one purpose draws does not depend on how much another draws.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dpexp.config.errors import ConfigError

MAX_SAMPLES = 10**8
"""The order of an epoch is in memory: 8 bytes a sample."""


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


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The samples of one epoch in their order, each once. Raises ConfigError for too many."""
    if samples > MAX_SAMPLES:
        raise ConfigError(
            f"--data: the data set has {samples} samples, and an epoch can have at most {MAX_SAMPLES}"
        )
    return torch.randperm(samples, generator=generator(seed, f"order of epoch {epoch}"))

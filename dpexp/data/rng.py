"""Random numbers: generators and orders that are the same in every process for the same seed.

Each purpose has its own generator: what one purpose draws does not depend on how much another draws.
"""

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
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
    np.random.seed(seed % 2**32)


def random_state() -> bytes:
    """That of the global generators of the host; of equal ones the next numbers are equal."""
    return pickle.dumps((torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()))


def set_random_state(state: bytes) -> None:
    """The inverse of ``random_state``."""
    of_torch, of_python, of_numpy = pickle.loads(state)
    torch.set_rng_state(torch.from_numpy(of_torch))
    random.setstate(of_python)
    np.random.set_state(of_numpy)


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore the global generators of the host at the end."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The samples of one epoch in their order, each once. Raises ConfigError for too many."""
    if samples > MAX_SAMPLES:
        raise ConfigError(
            f"--data: the data set has {samples} samples, and an epoch can have at most {MAX_SAMPLES}"
        )
    return torch.randperm(samples, generator=generator(seed, f"order of epoch {epoch}"))

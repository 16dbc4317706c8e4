"""Random numbers: generators and orders that are the same in every process for the same seed.

Each purpose has its own generator: what one purpose draws does not depend on how much another draws.
"""

import hashlib
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

_T = TypeVar("_T")


def generator(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator for one purpose; those of different purposes and seeds are independent."""
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of what the data draws in an epoch."""
    return generator(seed, f"data of epoch {epoch}").initial_seed()


# --- the global generators of the host: those of torch, Python and NumPy ---


def seed_globals(seed: int) -> None:
    """Seed the generators that user code draws from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> bytes:
    """That of the generators; of equal ones the next numbers are equal."""
    with torch._C._DisableFuncTorch():  # inside of torch.func.grad, say, a new tensor has no memory
        of_torch = torch.get_rng_state().numpy()
    return pickle.dumps((of_torch, random.getstate(), np.random.get_state()))


def set_random_state(state: bytes) -> None:
    """The inverse of ``random_state``."""
    of_torch, of_python, of_numpy = pickle.loads(state)
    torch.set_rng_state(torch.from_numpy(of_torch))
    random.setstate(of_python)
    np.random.set_state(of_numpy)


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore the generators at the end."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


def apart(values: Iterator[_T], seed: int) -> Iterator[_T]:
    """What the iterator gives: it draws as if the generators were its own, and had begun with the seed."""
    with kept_globals():
        seed_globals(seed)
        state = random_state()
    end = object()
    while True:
        with kept_globals():
            set_random_state(state)
            value: Any = next(values, end)
            state = random_state()
        if value is end:
            return
        yield value

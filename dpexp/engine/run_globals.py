"""Run globals: what a run sets in its process, in one context; afterwards all is as it was before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpexp.config.process import cores
from dpexp.config.run_config import RunConfig
from dpexp.data.rng import generator, kept_globals, seed_globals
from dpexp.distributed.group import ProcessGroup


@contextmanager
def run_globals(config: RunConfig) -> Iterator[None]:
    """Inside, torch has the threads of the run and deterministic kernels; random numbers are restored.

    ``prepare`` seeds the random numbers, since the data and the model of a run each begin with its seed.
    """
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    torch.set_num_threads(config.threads or _default_threads())
    cudnn.benchmark = False  # it chooses another kernel from run to run
    cudnn.deterministic = True
    try:
        with kept_globals():
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.benchmark, cudnn.deterministic = before


def _default_threads() -> int:
    """All cores but one, so that threads which wait for each other never wait for the delivery to MLflow."""
    usual = torch.get_num_threads()
    return usual if "OMP_NUM_THREADS" in os.environ else max(1, min(usual, cores() - 1))


@contextmanager
def seeded_ranks(group: ProcessGroup, seed: int) -> Iterator[None]:
    """At the end, ranks that split the rows draw random numbers of their own, as by dropout.

    Inside, where they lay the model out, they draw the same. A layout that seeds them is left alone.
    """
    if group.dp_size > 1:
        seed_globals(generator(seed, "layout").initial_seed())
    before = torch.initial_seed()
    yield
    if group.dp_size > 1 and torch.initial_seed() == before:
        seed_globals(generator(seed, f"rank {group.dp_rank}").initial_seed())

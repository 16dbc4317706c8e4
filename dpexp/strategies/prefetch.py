"""Prefetch: whether a loop prepares batches before their steps, and is informed of what updates write.

::

    with closing(prefetch.ahead(batches)) as ahead:
        for batch in ahead:              # those after it may be prepared meanwhile
            ...                          # forward, backward
            with prefetch.writing():
                optimizer.step()
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, nullcontext

from dpexp.data.batch import Batch


class Prefetch(ABC):
    """What a layout prepares of batches ahead of their steps; these have the same bits without it."""

    @abstractmethod
    def ahead(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """The batches, one for each step; close it where its loop ends early."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Around the optimizers' step: it writes to the rows that have a gradient."""


class NoPrefetch(Prefetch):
    """Every batch is computed from in its own step."""

    def ahead(self, batches: Iterable[Batch]) -> Generator[Batch]:
        yield from batches

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

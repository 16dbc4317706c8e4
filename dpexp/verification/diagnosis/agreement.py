"""Agreement: parts of a diagnosis that may raise on any rank, without another rank waiting for it.

rank 0   all_gather | all_gather                            -> rank 1's error
rank 1   all_gather | raises, then all_gather of its error  -> its error
"""

from collections.abc import Callable
from typing import Any

from dpexp.config.errors import describe
from dpexp.distributed.process_group import ProcessGroup


class _PeerError(Exception):
    """Another rank has raised."""


class Agreement:
    """What the ranks gather while they diagnose: all of them come to the same text, or to the same error."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def all_gather(self, value: Any) -> list[Any]:
        """The value of every rank, by rank. Raises where a rank has raised instead."""
        return self._all_gather(value, "")

    def text_of(self, what: str, part: Callable[[], str]) -> str:
        """What the part returns on every rank, or which error has ended it; every rank must call this.

        Errors of any kind: what they would hide is a difference that is known already.
        """
        try:
            return str(self.all_gather(part())[0])
        except _PeerError as error:
            return f"{what}: not located, {error}"
        except Exception as error:
            try:
                self._all_gather(None, describe(error))
            except _PeerError as first:
                return f"{what}: not located, {first}"
            raise

    def _all_gather(self, value: Any, error: str) -> list[Any]:
        by_rank = self._group.all_gather((value, error))
        for rank, (_, text) in enumerate(by_rank):
            if text:
                raise _PeerError(f"rank {rank} raised {text}" if len(by_rank) > 1 else text)
        return [each for each, _ in by_rank]

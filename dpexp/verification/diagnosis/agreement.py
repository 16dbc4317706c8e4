"""Agreement: what ranks gather while they diagnose. None waits for one that raises; all get its error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dpexp.config.errors import describe
from dpexp.distributed.group import ProcessGroup

_T = TypeVar("_T")


class LocateError(Exception):
    """A rank has raised."""


@dataclass(frozen=True)
class Found:
    """Where a difference begins, in words, and in which module, if it is known; empty is the model itself.

    ``is_sure`` unless the module around it is right.
    """

    text: str = ""
    module: str | None = None
    is_sure: bool = True


class Agreement:
    """Every rank must call its methods in the same order; all come to the same text."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def all_gather(self, part: Callable[[], _T]) -> list[_T]:
        """What the part returns on every rank, by rank. Raises LocateError on all of them where it raises."""
        own, error = list[_T](), ""
        try:
            own = [part()]
        except Exception as raised:  # of any kind: it is the user's model
            error = describe(raised)
        by_rank = self._group.all_gather((own, error))
        for rank, (_, text) in enumerate(by_rank):
            if text:
                raise LocateError(f"rank {rank} raised {text}" if len(by_rank) > 1 else text)
        return [each for found, _ in by_rank for each in found]

    @staticmethod
    def found(what: str, part: Callable[[], Found]) -> Found:
        """What the part returns, or which error has ended it: the difference that it explains is known."""
        try:
            return part()
        except LocateError as error:
            return Found(f"{what}: not located, {error}")
        except Exception as error:  # of any kind: on every rank, since all have gathered the same
            return Found(f"{what}: not located, {describe(error)}")

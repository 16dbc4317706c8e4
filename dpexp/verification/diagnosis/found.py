"""Found: where a difference from the single device begins, as one of several searches says it."""

from collections.abc import Callable
from dataclasses import dataclass

from dpexp.config.errors import describe
from dpexp.distributed.group import RankError


@dataclass(frozen=True)
class Found:
    """Where a difference begins, in words, and in which module, if it is known; empty is the model itself.

    ``is_sure`` unless the module around it is right.
    """

    text: str = ""
    module: str | None = None
    is_sure: bool = True


def located(what: str, search: Callable[[], Found]) -> Found:
    """What the search finds, or which error has ended it: the difference that it explains is known.

    Every rank must call this. All get the same, since all have gathered the same, or the same RankError.
    """
    try:
        return search()
    except RankError as error:
        return Found(f"{what}: not located, {error}")
    except Exception as error:  # of any kind: it is the user's model
        return Found(f"{what}: not located, {describe(error)}")

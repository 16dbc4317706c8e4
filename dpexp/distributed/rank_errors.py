"""Errors that ended ranks, as the process that launched them raises them again."""

from collections.abc import Mapping, Sequence

from dpexp.distributed.faults import LostContact
from dpexp.distributed.rank_files import RankResult
from dpexp.distributed.signals import Terminated
from dpexp.record.record import Record


class RanksError(RuntimeError):
    """The run failed in its ranks; the Record of the first rank has the reason."""


def recorded_error(record: Record, fault: BaseException | None) -> BaseException | None:
    """The error that ended a recorded run early; the launcher's own ``fault`` where that is its cause."""
    if record.status == "finished":
        return None
    recorded: Mapping[str, str] = record.error or {}
    message = recorded.get("message", f"the run is {record.status}")
    kinds = {kind.__name__: kind for kind in (Terminated, KeyboardInterrupt, LostContact)}
    error = kinds.get(recorded.get("type", ""), RanksError)(message)
    return fault if isinstance(error, LostContact) and getattr(fault, "is_cause", False) else error


def error_without_record(results: Sequence[RankResult], fault: BaseException | None) -> BaseException | None:
    """The error of a host whose ranks do not include the first, or have no run yet; None if they finished.

    A signal to this process is why its ranks ended, whatever they say.
    """
    if isinstance(fault, KeyboardInterrupt | Terminated):
        return fault
    for result in results:
        if result.status != "finished":
            return RanksError(result.message)
    return fault if results or fault else RanksError("the ranks ended without a result")

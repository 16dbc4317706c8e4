"""Clock: the time of day for Records, which never runs back or jumps between two lines of a run.

A machine's clock may be set while a run lasts, or be wrong from its start. So the times of a run are
counted from the boot, beginning with the time of day when the run begins.
"""

import time
from datetime import UTC, datetime

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It counts while the machine sleeps, too; where there is none, that which does not."""
_offset_ns: list[int] = []
"""Of the time of day from that clock."""


def now_ms() -> int:
    """The time in ms since 1970."""
    if not _offset_ns:
        restart()
    return (time.clock_gettime_ns(_SINCE_BOOT) + _offset_ns[0]) // 1_000_000


def now() -> str:
    """The time, UTC, ISO 8601 to the millisecond."""
    return iso(now_ms())


def iso(ms: float) -> str:
    """A time in ms since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def restart(not_before_ms: float = float("-inf")) -> None:
    """Read the time of day, for a new run; for one that resumes, a time after its last line."""
    passed_ns = time.clock_gettime_ns(_SINCE_BOOT)
    today_ns = time.time_ns()
    if today_ns < not_before_ms * 1e6:
        today_ns = int(not_before_ms * 1e6)
    _offset_ns[:] = [today_ns - passed_ns]

"""Recording: the journal and the follower of a watched loop."""

from __future__ import annotations

from typing import Any


class NoRecording:
    """Writes nothing."""

    def _ignore(self, *values: Any) -> None:
        """Write nothing."""

    laid_out = shapes = step = verified = log = close = _ignore


class Recording(NoRecording):
    """Replaced by the real one before this lands."""

    @classmethod
    def begin(cls, *values: Any) -> Recording:
        """A recording."""
        return cls()

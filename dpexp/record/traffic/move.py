"""Move: bytes that one device sends another."""

from dataclasses import dataclass

from dpexp.record.record import Row


@dataclass(frozen=True)
class Move:
    """Bytes that one device sends another: ``what`` they are sent by, as a part of the phase ``phase``."""

    what: str
    phase: str
    source: str
    target: str
    bytes: int
    is_backward: bool = False

    @property
    def name(self) -> str:
        """``gather``, or ``gather backward``."""
        return f"{self.what} backward" if self.is_backward else self.what


def is_trained(row: Row) -> bool:
    """Whether a row of the device map is of a parameter that gets a gradient."""
    return row["kind"] == "parameter" and not row.get("frozen")

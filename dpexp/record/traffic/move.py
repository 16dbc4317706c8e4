"""Move: bytes that one device sends another, and what they are computed from."""

from dataclasses import dataclass

from dpexp.record.record import Row

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ID_BYTES = 8


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

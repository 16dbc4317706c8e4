"""Findings: what a watched loop computes otherwise than a single device, and why it was not compared."""

from __future__ import annotations

from dataclasses import dataclass

from dpexp.config.errors import VerificationError
from dpexp.verification.compare import Difference
from dpexp.verification.result import row_of


@dataclass(frozen=True)
class LoopFinding:
    """The optimizer step, counted from 1, what kind of tensors differ, which, and the cause in words."""

    step: int
    kind: str
    what: str
    cause: str = ""
    worst: Difference | None = None

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind}: {self.what}" + f": {self.cause}" * bool(self.cause)

    def error(self) -> VerificationError:
        """The error of a loop of which this was found."""
        where = row_of(self.worst) or {"kind": self.kind, "step": self.step}
        text = f"the loop does not compute what a single device computes: {self}"
        return VerificationError(text, **where, cause=str(self))


class FoundError(Exception):
    """Ends the comparison of a step with a finding."""

    def __init__(self, finding: LoopFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding

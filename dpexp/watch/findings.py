"""Findings: what a watched loop computes otherwise than a single device, and why it was not compared."""

from __future__ import annotations

from dataclasses import dataclass

from dpexp.verification.compare import Difference


class NotComparableError(RuntimeError):
    """The loop was not compared with a single device: the message says why, and what to do."""


@dataclass(frozen=True)
class Finding:
    """The optimizer step, counted from 1, what kind of tensors differ, which, and the cause in words."""

    step: int
    kind: str
    what: str
    cause: str = ""
    worst: Difference | None = None

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind}: {self.what}" + f": {self.cause}" * bool(self.cause)


class FoundError(Exception):
    """Ends the comparison of a step with a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding

"""RunSummary: the facts of a run that a list shows, in a file of a few hundred bytes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from dpexp.record.record import Record, Row, present
from dpexp.record.schema import wrong_summary_types

SUMMARY = "head.json"
"""The name that it has in every home so far; without the file a summary is folded from the journal."""
_SAME = ("run_id", "name", "experiment", "strategy", "execution", "status", "started", "ended")


@dataclass(frozen=True)
class RunSummary:
    """What ``runs.py list`` shows of a run. ``verified`` is None if nothing was checked.

    ``steps`` counts the measured ones, ``damage`` what is wrong with the journal, ``missing_steps`` what it
    lost; ``problem`` says why a run cannot be read at all.
    """

    run_id: str
    name: str
    experiment: str
    strategy: str
    execution: str
    devices: list[str]
    verified: bool | None
    step_ms: Row | None
    status: str
    started: str
    ended: str | None
    damage: int = 0
    steps: int = 0
    missing_steps: int = 0
    problem: str = ""

    @classmethod
    def of(cls, record: Record) -> RunSummary:
        """The summary of a Record."""
        return cls(
            **{name: getattr(record, name) for name in _SAME},
            devices=list(record.devices.get("used", [])),
            verified=record.verification.get("passed") if record.verification.get("checked") else None,
            step_ms=record.summary.get("step_ms"),
            damage=len(record.damage),
            steps=len(present(record.steps["time_ms"])),
            missing_steps=len(record.missing_steps()),
        )

    @classmethod
    def from_dict(cls, data: Row) -> RunSummary:
        """The inverse of ``to_dict``. Raises ValueError or TypeError for anything else."""
        if wrong := wrong_summary_types(data):
            raise ValueError(wrong[0])
        return cls(**data)

    def to_dict(self) -> Row:
        """JSON-ready."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())

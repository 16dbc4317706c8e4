"""RunSummary: the facts of a run that a list shows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from dpexp.record.figures.figure import At
from dpexp.record.figures.registry import figures
from dpexp.record.record import Record, Row, present
from dpexp.record.view import RecordView

_SAME = ("run_id", "name", "experiment", "strategy", "execution", "status", "started", "ended")


@dataclass(frozen=True)
class RunSummary:
    """What ``runs.py list`` shows of a run. ``verified`` is None if nothing was checked.

    ``figures`` are those of the registry that stand in lists, as a summary has them. ``steps`` counts the
    measured ones, ``damage`` is what is wrong with the journal; ``problem`` says why a run cannot be read at
    all.
    """

    run_id: str
    name: str
    experiment: str
    strategy: str
    execution: str
    devices: list[str]
    verified: bool | None
    status: str
    started: str
    ended: str | None
    figures: Row = field(default_factory=dict)
    damage: int = 0
    steps: int = 0
    problem: str = ""

    @classmethod
    def of(cls, record: Record) -> RunSummary:
        """The summary of a Record."""
        view = RecordView(record)
        return cls(
            **{name: getattr(record, name) for name in _SAME},
            devices=list(record.devices.get("used", [])),
            verified=record.verification.get("passed") if record.verification.get("checked") else None,
            figures={figure.name: figure.summarized(view) for figure in figures(At.LIST)},
            damage=len(record.damage),
            steps=len(present(record.steps["time_ms"])),
        )

    def to_dict(self) -> Row:
        """JSON-ready: the figures stand beside the facts."""
        facts = dataclasses.asdict(self)
        del facts["figures"]
        return facts | self.figures

"""Listing: heads as a table for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from dpexp.record.summary import RunSummary

HEADERS = (
    "run",
    "name",
    "strategy",
    "execution",
    "devices",
    "verified",
    "step ms",
    "status",
    "delivered",
    "started",
)
MAX_NAME = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def table(heads: Iterable[RunSummary], delivered: Mapping[str, str]) -> str:
    """One line a run, columns as wide as their widest cell; a step's time is median ± half its range."""
    rows = [_cells(head, delivered.get(head.run_id, "")) for head in heads]
    widths = [max(map(len, column)) for column in zip(HEADERS, *rows, strict=True)]
    return "\n".join(_line(row, widths) for row in (HEADERS, *rows))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cells(head: RunSummary, delivered: str) -> tuple[str, ...]:
    return tuple(
        map(
            plain,
            (
                head.run_id,
                head.name,
                head.strategy,
                head.execution,
                devices(head.devices),
                {True: "yes", False: "no", None: "-"}[head.verified],
                _step(head),
                head.status,
                delivered,
                head.started[:19].replace("T", " "),
            ),
        )
    )


def devices(names: Sequence[str]) -> str:
    """``cpu, cuda:0-3``: neighbours of one kind are drawn together."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        kind, _, index = name.partition(":")
        at = int(index) if index.isdecimal() else -1
        if runs and runs[-1][0] == kind and runs[-1][2] == at - 1 >= 0:
            runs[-1] = (kind, runs[-1][1], at)
        else:
            runs.append((kind, at, at))
    return ", ".join(_range(*run) for run in runs)


def _range(kind: str, first: int, last: int) -> str:
    if first < 0:
        return kind
    return f"{kind}:{first}" if first == last else f"{kind}:{first}-{last}"


def plain(text: str) -> str:
    """The text without control characters, which a terminal would obey, and of bounded length."""
    text = _CONTROL.sub("?", str(text))
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def _step(head: RunSummary) -> str:
    step = head.step_ms
    return f"{step['median']:.3g} ± {step['iqr'] / 2:.2g}" if step else "-"

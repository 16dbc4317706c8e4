"""Run list: run summaries as a table for a terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from dpexp.record.summary import RunSummary
from dpexp.report.render.listing import columns

HEADERS = "run, name, strategy, execution, devices, verified, step ms, status, delivered, started"
MOST_LETTERS = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def table(summaries: Iterable[RunSummary], delivered: Mapping[str, str]) -> str:
    """One line for each run; a step's time is its median ± half its interquartile range."""
    rows = (_row(summary, delivered.get(summary.run_id, "")) for summary in summaries)
    return "\n".join(columns([tuple(HEADERS.split(", ")), *rows], indent=0))


def _row(summary: RunSummary, delivered: str) -> tuple[str, ...]:
    step = summary.step_ms
    row = (
        summary.run_id,
        summary.name,
        summary.strategy,
        summary.execution,
        device_ranges(summary.devices),
        {True: "yes", False: "no", None: "-"}[summary.verified],
        f"{step['median']:.3g} ± {step['iqr'] / 2:.2g}" if step else "-",
        summary.status,
        delivered,
        summary.started[:19].replace("T", " "),
    )
    return tuple(map(_printable, row))


def device_ranges(names: Sequence[str]) -> str:
    """``cpu, cuda:0-3``: consecutive indices of one kind are joined."""

    def offset(place: tuple[int, str]) -> tuple[str, int]:
        """Equal for neighbours with consecutive indices."""
        position, name = place
        kind, _, index = name.partition(":")
        return (kind, int(index) - position) if index.isdecimal() else (name, position)

    groups = [[name for _, name in group] for _, group in groupby(enumerate(names), offset)]
    ends = (f"-{group[-1].partition(':')[2]}" if len(group) > 1 else "" for group in groups)
    return ", ".join(group[0] + end for group, end in zip(groups, ends, strict=True))


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would obey, and of bounded length."""
    text = _CONTROL.sub("?", str(text))
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"

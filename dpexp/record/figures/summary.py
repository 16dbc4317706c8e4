"""The ``summary`` of a Record: the figures of the registry that stand in it."""

from dpexp.record.figures.figure import At
from dpexp.record.figures.registry import figures
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView


def summarize(record: Record) -> Row:
    """Compute the figures of the summary again; returns it. What a run itself wrote into it stays."""
    view = RecordView(record)
    for figure in figures(At.SUMMARY):
        value = figure.summarized(view)
        if figure.is_kept or value not in (None, {}):
            record.summary[figure.name] = value
    return record.summary

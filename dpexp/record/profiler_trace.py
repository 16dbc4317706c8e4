"""Profiler trace: the file that ``--profile`` leaves in a run's folder.

The Record has its size, in ``work.operators.trace``.
"""

from pathlib import Path
from typing import Any

from dpexp.record.files import write_atomically
from dpexp.record.record import Record, Row

PROFILER_TRACE = "profiler_trace.json"


def write_trace(folder: Path, content: bytes) -> Row:
    """Write the trace into a run's folder. Returns ``bytes``. Raises OSError."""
    write_atomically(folder / PROFILER_TRACE, content)
    return {"bytes": len(content)}


def trace_of(record: Record) -> Any:
    """``bytes`` of the run's trace; None where it has none."""
    return record.work.get("operators", {}).get("trace")

"""Profiler trace: the file that ``--profile`` leaves in a run's folder.

The Record has its size and SHA-256, in ``work.operators.trace``.
"""

import hashlib
from pathlib import Path
from typing import Any

from dpexp.record.files import write_atomically
from dpexp.record.record import Record, Row

PROFILER_TRACE = "profiler_trace.json"


def write_trace(folder: Path, content: bytes) -> Row:
    """Write the trace into a run's folder. Returns ``bytes`` and ``sha256``. Raises OSError."""
    write_atomically(folder / PROFILER_TRACE, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def trace_of(record: Record) -> Any:
    """``bytes`` and ``sha256`` of the run's trace; None where it has none."""
    return record.work.get("operators", {}).get("trace")

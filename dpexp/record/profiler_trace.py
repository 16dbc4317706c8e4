"""Profiler trace: the file that ``--profile`` leaves in a run's folder, and whether it is still that file.

The Record has its size and SHA-256, in ``work.operators.trace``.
"""

import hashlib
from pathlib import Path
from typing import Any

from dpexp.config.ranges import plural
from dpexp.record.journal.durable import read_file, write_atomically
from dpexp.record.record import Record, Row

PROFILER_TRACE = "profiler_trace.json"


def write_trace(folder: Path, content: bytes) -> Row:
    """Write the trace into a run's folder. Returns ``bytes`` and ``sha256``. Raises OSError."""
    write_atomically(folder / PROFILER_TRACE, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def trace_of(record: Record) -> Any:
    """``bytes`` and ``sha256`` of the run's trace; None where it has none."""
    return record.work.get("operators", {}).get("trace")


def wrong_trace(folder: Path, record: Record) -> str:
    """What is wrong with the trace in a run's folder; empty where it is as written, or the run has none."""
    if (expected := trace_of(record)) is None:
        return ""
    try:
        content = read_file(folder / PROFILER_TRACE)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return error.strerror or str(error)
    if len(content) != expected["bytes"]:
        return f"{plural(len(content), 'byte')} instead of {expected['bytes']}"
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        return "its bytes have changed since it was written"
    return ""

"""Findings on where the time of a step goes."""

from __future__ import annotations

import math

from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.findings.evidence import Evidence, Finding, Growth

SMALL = 0.10
"""A cost below this share of a step is not worth a finding."""
TINY_MS = 1.0
"""A replica that computes for longer than this is not dominated by Python."""
FAR = 100
"""An estimate for a batch more than so many times the largest measured one is not given."""
HOST_BYTES_PER_MS = 1e7
"""A host streams about 10 GB/s from one thread: a dense update of 256 MB, in three passes, takes 80 ms."""


def replicate(evidence: Evidence) -> Finding | None:
    """Copying the parameters to the replicas, in every forward, takes a large part of a step."""
    phase = evidence.phases.get("replicate")
    moved = layout.replicated_bytes(evidence.record)
    if phase is None or phase.share <= SMALL or not moved:
        return None
    computing = evidence.phases.get("parallel_apply")
    targets = len({device for row in evidence.record.device_map for device in row["replicas"]})
    against = f", against {units.ms(computing.median)} of parallel_apply" if computing else ""
    text = (
        f"replicate takes {units.percent(phase.share)} of a step ({units.ms(phase.median)}): every forward "
        f"copies {units.size(moved)} of parameters and buffers to {targets} "
        f"device{'s' if targets > 1 else ''}{against}."
    )
    figures = {"share": phase.share, "ms": phase.median, "bytes": float(moved)}
    advice = "Wrap a smaller block, or use a process a device: DistributedDataParallel copies nothing."
    rows = _rows_for_small(evidence.growth(), phase.median)
    if rows is not None:
        figures["rows"] = rows
        advice = (
            f"It falls under {units.percent(SMALL)} from about {units.number(rows)} rows a batch, "
            f"if steps go on growing with their rows as measured here. {advice}"
        )
    return Finding("replicate", text, advice, figures)


def _rows_for_small(growth: Growth | None, ms: float) -> float | None:
    """The rows at which ``ms`` is 10% of a step, on the line through both batch sizes, if carried."""
    if growth is None or growth.per_row.low <= 0:
        return None
    at_none = growth.many_ms - growth.per_row.value * growth.many
    rows = (ms / SMALL - at_none) / growth.per_row.value
    return math.ceil(rows) if growth.many < rows <= FAR * growth.many else None


def overhead(evidence: Evidence) -> Finding | None:
    """Threads, Python and launching kernels take longer than the kernels."""
    return _around_replicas(evidence) or _same_for_any_rows(evidence)


def _around_replicas(evidence: Evidence) -> Finding | None:
    computing = evidence.replicas_ms()
    parts = [evidence.phases.get(name) for name in ("scatter", "replicate", "parallel_apply", "gather")]
    forward = sum(part.median for part in parts if part is not None)
    if computing is None or computing >= TINY_MS or computing >= forward / 2:
        return None
    return Finding(
        "overhead",
        f"Threads and Python dominate the forward: replicas compute during {units.ms(computing)} of it, and "
        f"scatter, replicate, starting threads and gather take the other {units.ms(forward - computing)}.",
        "Give each device more to do, by a larger --batch-size or a larger model, or use one device.",
        {"computing_ms": computing, "around_ms": forward - computing},
    )


def _same_for_any_rows(evidence: Evidence) -> Finding | None:
    growth = evidence.growth()
    if growth is None or growth.fixed.low < 0.5 or growth.many_ms >= 10 * TINY_MS:
        return None
    return Finding(
        "overhead",
        f"Fixed costs dominate: a step of {growth.few} rows takes {units.ms(growth.few_ms)}, one of "
        f"{growth.many} rows "
        f"{units.ms(growth.many_ms)}, so that about {units.percent(min(1.0, growth.fixed.value))} of it is "
        "Python and "
        "launching kernels, whatever the rows.",
        f"A --batch-size well above {growth.many} costs little more; more devices cannot help yet.",
        {"fixed_share": growth.fixed.value, "low": growth.fixed.low, "high": growth.fixed.high},
    )


def dense_gradient(evidence: Evidence) -> Finding | None:
    """The gradient of a large embedding table is written whole, for the few rows that a batch touches."""
    record = evidence.record
    if record.config.get("sparse", True) or record.config.get("eval"):
        return None
    hosted = record.config.get("host", ())
    tables = [
        row
        for row in record.device_map
        if row["kind"] == "parameter" and len(row["shape"]) == 2 and row["module"] in hosted
    ]
    touched = max((_ids(evidence, row["module"]) for row in tables), default=0)
    if not tables or not touched:
        return None
    table = max(tables, key=lambda row: int(row["bytes"]))
    share = evidence.share("backward", "optimizer")
    writing = 3 * table["bytes"] / HOST_BYTES_PER_MS
    spent = share * evidence.step_ms
    if table["shape"][0] < 10 * touched or share < 0.5 or writing < 0.3 * spent:
        return None
    return Finding(
        "dense_gradient",
        f"The dense gradient of '{table['module']}' dominates: backward and optimizer take "
        f"{units.percent(share)} of a "
        f"step ({units.ms(spent)}), writing {units.size(table['bytes'])} for {table['shape'][0]:,} rows of "
        "which a batch "
        f"touches at most {touched:,}.",
        "Use --sparse: only the rows of the batch get a gradient and move.",
        {
            "share": share,
            "bytes": float(table["bytes"]),
            "rows": float(table["shape"][0]),
            "touched": float(touched),
        },
    )


def _ids(evidence: Evidence, module: str) -> int:
    """How many ids the largest batch looks up in a module."""
    counts = [
        sum(units.elements(dims) for dims in inputs)
        for group in evidence.batches
        for call in group.calls
        if call.module == module
        for inputs in call.inputs
    ]
    return max(counts, default=0)


def transfer(evidence: Evidence) -> Finding | None:
    """The accelerator waits while the host's outputs travel to it."""
    record = evidence.record
    phase = evidence.phases.get("transfer")
    if record.execution != "real" or phase is None or not evidence.devices:
        return None
    if record.config.get("pipeline", True) or phase.share <= SMALL:
        return None
    moved = sum(move.bytes for move in layout.moves(record) if move.what == "transfer")
    return Finding(
        "transfer",
        f"The transfer from the host is not overlapped: it takes {units.percent(phase.share)} of a step "
        f"({units.ms(phase.median)} for {units.size(moved)}), while the accelerator waits.",
        "Use --pipeline: the host embeds one part of the batch while the accelerator works on the other.",
        {"share": phase.share, "ms": phase.median, "bytes": float(moved)},
    )

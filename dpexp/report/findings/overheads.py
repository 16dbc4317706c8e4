"""Findings on what a step spends beside computing: copies, threads, transfers, communication."""

import math
from dataclasses import dataclass

from dpexp.config.ranges import plural
from dpexp.record import device_map
from dpexp.report import units
from dpexp.report.findings.evidence import Evidence, Growth
from dpexp.report.findings.rules import Finding, rule

SMALL = 0.10
"""An overhead below this share of a step is not reported."""
TINY_MS = 1.0
"""A replica that computes for longer than this is not dominated by Python."""
FAR = 100
"""No estimate is given for a batch that is more than this many times the largest measured one."""
HOST_BYTES_PER_MS = 1e7
"""A host streams about 10 GB/s from one thread: a dense update of 256 MB, in three passes, takes 80 ms."""
EXPOSED, EXPOSED_MS = 0.25, 0.5
"""An all-reduce is reported where this share of a step, and at least this many ms, is not overlapped."""


@rule(place=20, headline="copying parameters")
def replicate(evidence: Evidence) -> Finding | None:
    """Copying the parameters to the replicas in every forward takes a large part of a step."""
    phase = evidence.phases.get("replicate")
    moved = device_map.replicated_bytes(evidence.record)
    if phase is None or phase.share <= SMALL or not moved:
        return None
    computing = evidence.phases.get("parallel_apply")
    targets = len({device for row in evidence.record.device_map for device in row["replicas"]})
    against = f", against {units.ms(computing.median)} of parallel_apply" if computing else ""
    text = (
        f"replicate takes {units.percent(phase.share)} of a step ({units.ms(phase.median)}): every forward "
        f"copies {units.size(moved)} of parameters and buffers to {plural(targets, 'device')}{against}."
    )
    figures = {"share": phase.share, "ms": phase.median, "bytes": float(moved)}
    advice = "Wrap a smaller block, or run one process per device: DistributedDataParallel copies nothing."
    rows = _rows_for_small(evidence.growth, phase.median)
    if rows is not None:
        figures["rows"] = rows
        advice = (
            f"It falls under {units.percent(SMALL)} from about {units.number(rows)} rows a batch, "
            f"if step time keeps growing with the rows as measured here. {advice}"
        )
    return Finding(text, advice, figures)


def _rows_for_small(growth: Growth | None, ms: float) -> float | None:
    """The rows at which ``ms`` is a SMALL share of a step, on the line through both batch sizes."""
    if growth is None or growth.per_row.low <= 0:
        return None
    no_rows_ms = growth.many_ms - growth.per_row.value * growth.many
    rows = (ms / SMALL - no_rows_ms) / growth.per_row.value
    return math.ceil(rows) if growth.many < rows <= FAR * growth.many else None


@rule(place=30, headline="mostly overhead")
def overhead(evidence: Evidence) -> Finding | None:
    """Threads, Python and launching kernels take longer than the kernels."""
    return _around_replicas(evidence) or _independent_of_rows(evidence)


@dataclass(frozen=True)
class _Forward:
    """A forward with replicas, in ms: all of it, while any replica computes, and what copies take."""

    ms: float
    computing: float
    copies: float

    @property
    def around(self) -> float:
        return self.ms - self.computing

    @property
    def is_explained(self) -> bool:
        """Whether the copies are at least half of what is around the replicas."""
        return self.copies >= self.around / 2

    @property
    def figures(self) -> dict[str, float]:
        return {"computing_ms": self.computing, "around_ms": self.around, "copies_ms": self.copies}


def _overhead_of_replicas(evidence: Evidence) -> _Forward | None:
    """The forward, where short replicas take less than half of it."""
    computing, phases = evidence.replicas_ms(), evidence.phases
    copies = sum(phases[name].median for name in ("scatter", "replicate", "gather") if name in phases)
    calls = phases["parallel_apply"].median if "parallel_apply" in phases else 0.0
    forward = phases["forward"].median if "forward" in phases else copies + calls
    if not calls or computing is None or computing >= TINY_MS or computing >= forward / 2:
        return None
    return _Forward(forward, computing, copies)


def _around_replicas(evidence: Evidence) -> Finding | None:
    forward = _overhead_of_replicas(evidence)
    if forward is None or not forward.is_explained:
        return None
    return Finding(
        f"Copies and threads dominate the forward: replicas compute during {units.ms(forward.computing)} of "
        f"its {units.ms(forward.ms)}, scatter, replicate and gather take {units.ms(forward.copies)}, and "
        f"starting threads {units.ms(forward.around - forward.copies)}.",
        "Give each device more to do, by a larger --batch-size or a larger model, or use one device.",
        forward.figures,
    )


@rule(place=35, headline="time of unknown cause")
def unknown_time(evidence: Evidence) -> Finding | None:
    """Neither the replicas nor the copies account for the forward."""
    forward = _overhead_of_replicas(evidence)
    if forward is None or forward.is_explained:
        return None
    return Finding(
        f"Most of the forward's {units.ms(forward.ms)} has no known cause: replicas compute during "
        f"{units.ms(forward.computing)}, scatter, replicate and gather take {units.ms(forward.copies)}, and "
        f"in the other {units.ms(forward.around - forward.copies)} threads start, wait or are held up.",
        f"To see the rest: {evidence.how_to_see}. Or give each device more to do by a larger --batch-size.",
        forward.figures,
    )


def _independent_of_rows(evidence: Evidence) -> Finding | None:
    growth = evidence.growth
    if growth is None or growth.fixed.low < 0.5 or growth.many_ms >= 10 * TINY_MS:
        return None
    return Finding(
        f"Fixed costs dominate: a step of {plural(growth.few, 'row')} takes {units.ms(growth.few_ms)}, "
        f"a step of {growth.many} rows {units.ms(growth.many_ms)}. About "
        f"{units.percent(min(1.0, growth.fixed.value))} of it does not depend on the rows.",
        f"A --batch-size well above {growth.many} costs little more; more devices cannot help yet.",
        {"fixed_share": growth.fixed.value, "low": growth.fixed.low, "high": growth.fixed.high},
    )


@rule(place=40, headline="dense gradient of a table")
def dense_gradient(evidence: Evidence) -> Finding | None:
    """The gradient of a large embedding table is written in full, although a batch touches few rows."""
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
    if not touched:
        return None
    table = max(tables, key=lambda row: int(row["bytes"]))
    rows, phases = table["shape"][0], evidence.phases.items()
    share = sum(phase.share for name, phase in phases if name in ("backward", "optimizer"))
    writing_ms = 3 * table["bytes"] / HOST_BYTES_PER_MS
    spent_ms = share * evidence.step_ms
    if rows < 10 * touched or share < 0.5 or writing_ms < 0.5 * spent_ms:
        return None
    return Finding(
        f"The dense gradient of '{table['module']}' dominates: backward and optimizer take "
        f"{units.percent(share)} of a step ({units.ms(spent_ms)}), writing {units.size(table['bytes'])} for "
        f"{rows:,} rows of which a batch touches at most {touched:,}.",
        "Use --sparse: only the rows of the batch get a gradient and move.",
        {"share": share, "bytes": float(table["bytes"]), "rows": float(rows), "touched": float(touched)},
    )


def _ids(evidence: Evidence, module: str) -> int:
    """How many ids the largest batch looks up in a module."""
    calls = [call for group in evidence.batches for call in group.calls if call.module == module]
    return max((sum(map(math.prod, inputs)) for call in calls for inputs in call.inputs), default=0)


@rule(place=80, headline="all-reduce that nothing overlaps")
def exposed_allreduce(evidence: Evidence) -> Finding | None:
    """The all-reduce continues long after backward has computed all gradients."""
    phases, step_ms = evidence.phases, evidence.step_ms
    if not {"allreduce", "overlap"} <= set(phases) or not step_ms:
        return None
    exposed = max(0.0, phases["allreduce"].median - phases["overlap"].median)
    if exposed < EXPOSED * step_ms or exposed < EXPOSED_MS:
        return None
    sent = sum(row["bytes"] for row in evidence.record.device_map if row["kind"] == "parameter")
    return Finding(
        f"Backward does not hide the all-reduce of {units.size(sent)} of gradients: "
        f"{units.ms(exposed)} of a step ({units.percent(exposed / step_ms)}) is spent on it alone.",
        "A larger --batch-size computes more for the same gradients; a smaller --bucket-mb starts earlier.",
        {"exposed_ms": exposed, "share": exposed / step_ms, "bytes": float(sent)},
    )

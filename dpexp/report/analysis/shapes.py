"""The shapes of a run as text."""

from dpexp.config.ranges import plural
from dpexp.record.batches import Batches, Call
from dpexp.report import units


def call_texts(call: Call) -> tuple[str, str]:
    """Inputs and outputs of a call as text, replicas counted: ``2 × (4, 5) + (2, 5)``."""
    inputs, outputs = (map(units.shapes_text, each) for each in (call.inputs, call.outputs))
    return units.counted(inputs), units.counted(outputs)


def headline(group: Batches) -> str:
    """``30 rows -> 15 + 15``, as in DataParallel's tutorials; ranks that compute the same are counted."""
    split = f" -> {units.repeated(map(str, group.parts))}" if group.split else ""
    if group.same_rows:
        split += f", each on {plural(len(group.same_rows[0]), 'rank')}"
    return f"{plural(group.rows, 'row')}{split}"

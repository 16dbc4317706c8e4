"""Agreement: whether a Record agrees with itself, with its repeats, and with what its config predicts.

Nothing is run, so that a Record from elsewhere can be examined safely. An edited Record passes only if every
fact that depends on the edited one was edited with it, in every round; ``reproduce`` finds that too.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from dpexp.config.run_config import config_digest
from dpexp.record.figures.step_times import spread
from dpexp.record.record import Record, Row, present
from dpexp.record.view import RecordView

DECIDED = ("execution", "data", "devices", "device_map", "shapes", "verification", "digest")
"""What the config decides on one kind of machine: equal in all runs of a cell."""


def contradictions(record: Record) -> list[str]:
    """What in a finished Record contradicts the rest of it."""
    return [*_config(record), *_verification(record), *_steps(record), *_work(record), *_summary(record)]


def _config(record: Record) -> Iterator[str]:
    config = record.config
    if not config.get("strategy"):  # a program's, which has no config
        return
    if config_digest(config) != record.config_digest:
        yield "config_digest is not the SHA-256 of its config"
    if record.strategy != config["strategy"]:
        yield f"strategy is {record.strategy}, but its config says {config['strategy']}"
    if config.get("virtual") and record.execution != "virtual":
        yield f"execution is {record.execution}, but its config says --virtual {config['virtual']}"
    if not config.get("check", True) and record.verification.get("checked"):
        yield "it is verified, but its config says --no-check"


def _verification(record: Record) -> Iterator[str]:
    found = record.verification
    if not found.get("checked") or found.get("rounding") is not None:
        return
    limit = found.get("tolerance")
    for name in ("output_error", "gradient_error"):
        error = found.get(name)
        if found.get("passed") and limit is not None and (error is None or not error <= limit):
            yield f"its verification passed with {name} {error}, not at most {limit}"


def _steps(record: Record) -> Iterator[str]:
    lengths = {name: len(values) for name, values in record.steps.items()}
    if len(set(lengths.values())) > 1:
        yield f"its steps have {', '.join(f'{count} {name}' for name, count in lengths.items())}"
    config, size = record.config, record.config.get("batch_size")
    if not size:
        return
    wanted, measured = config.get("steps"), len(record.steps["time_ms"])
    if wanted and not config.get("epochs") and measured != wanted:
        yield f"{measured} steps are measured, but its config says --steps {wanted}"
    sizes = {size, record.data.get("samples", 0) % size}
    if other := sorted(set(present(record.steps["samples"])) - sizes):
        yield f"steps have {other[0]} rows, but batches have {size} and the last one of an epoch the rest"
    if record.ended is not None:
        wall = datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)
        total_s = sum(present(record.steps["time_ms"])) / 1000
        if total_s > wall.total_seconds() + 0.001:
            yield f"its steps take {total_s:.3g} s, but the run took {wall.total_seconds():.3g} s"


def _work(record: Record) -> Iterator[str]:
    """What memory and the link give beside the stages of a hybrid."""
    for name in ("memory", "link"):
        figures = record.work.get(name)
        if figures is None:
            continue
        rates = figures["bytes_per_s"]
        if not 0 < rates["min"] <= rates["median"] <= rates["max"] or not 0 <= rates["iqr"] <= rates["max"]:
            yield f"work.{name} is {rates}, not the spread of rates"
        if "embedding" not in record.phases:
            yield f"work.{name} is measured, but its phases have no embedding"
    if "link" in record.work and record.execution == "virtual":
        yield "work.link is measured, but its devices are virtual"
    memory = record.work.get("memory")
    if memory and memory["row_bytes"] not in _row_bytes(record):
        yield f"work.memory has rows of {memory['row_bytes']} bytes, and no table of its device map has"
    given, recorded = RecordView(record).stages, record.summary.get("stages", {})
    for name in (name for name in recorded if name.endswith("_share")):
        if not math.isclose(recorded[name], given.get(name, math.nan), rel_tol=1e-6):
            computed = given.get(name)
            yield f"summary.stages.{name} is {recorded[name]}, but its phases and work give {computed}"


def _row_bytes(record: Record) -> set[int]:
    """The bytes of a row of each matrix on the host."""
    rows = (row for row in record.device_map if row["device"] == "cpu" and len(row["shape"]) == 2)
    return {row["bytes"] // max(1, row["shape"][0]) for row in rows}


def _summary(record: Record) -> Iterator[str]:
    """Of the full batches' steps, or of all, as older versions of dpexp summarized them."""
    recorded = record.summary.get("step_ms")
    of_full, of_all = spread(RecordView(record).usual_times), spread(present(record.steps["time_ms"]))
    if not any(_is_close(recorded, figures) for figures in (of_full, of_all)):
        yield f"summary.step_ms is {recorded}, but its steps give {of_full}"


def _is_close(one: Row | None, other: Row | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(math.isclose(figure, one.get(name, math.nan), rel_tol=1e-6) for name, figure in other.items())


def disagreements(records: Sequence[Record]) -> list[str]:
    """What the config decides and what is nevertheless different between the first run and another."""
    found = []
    for record in records[1:]:
        first = records[0]
        values = [(name, getattr(first, name), getattr(record, name)) for name in DECIDED]
        values += [(name, first.steps[name], record.steps[name]) for name in ("loss", "samples")]
        names = [name for name, one, other in values if not _same(one, other)]
        if names:
            found.append(f"{record.name} and {first.name} differ in {', '.join(names)}")
    return found


def _same(one: Any, other: Any) -> bool:
    return one == other or repr(one) == repr(other)  # the text of NaN equals itself


def unpredicted(record: Record, prediction: Row) -> list[str]:
    """What differs from the dry run of the config: execution, devices, device map, calls for a full batch.

    A dry run takes no step, so that it has no rows of what an optimizer keeps.
    """
    if prediction["note"]:  # of several ranks, or of devices that this machine lacks
        return []
    if _accelerators_differ(record, prediction):
        return []
    found = {
        "execution": (record.execution, prediction["execution"]),
        **{
            f"devices.{name}": (record.devices[name], prediction["devices"][name])
            for name in ("used", "output")
        },
        "device_map": (
            [row for row in record.device_map if row["kind"] != "optimizer"],
            prediction["device_map"],
        ),
        "shapes": (_calls(record.shapes), _calls(prediction["shapes"])),
    }
    return [f"{name} is not what its config predicts" for name, (one, other) in found.items() if one != other]


def _accelerators_differ(record: Record, prediction: Row) -> bool:
    """Whether the config leaves the devices to the machine, and that of the Record has other accelerators."""
    if record.config.get("virtual") or record.config.get("devices") == "cpu":
        return False
    recorded, present = (
        [name for name in facts["used"] if not name.startswith("cpu")]
        for facts in (record.devices, prediction["devices"])
    )
    return recorded != present


def _calls(shapes: Sequence[Row]) -> list[tuple[Any, ...]]:
    """The modules called for the first batch, by device, and what goes into and comes out of the whole model.

    What goes into a submodule may depend on the values of the batch, which a dry run does not have.
    """
    return [
        (row["module"], row["device"], *((row["inputs"], row["outputs"]) if not row["module"] else ()))
        for row in shapes
        if row["batch"] == 0
    ]

"""Agreement: whether Records agree with their repeats, with their sweep, and with what their config predicts.

No run is made, so that a Record from elsewhere can be examined safely; ``dpexp.record.consistency`` finds
what a Record says against itself. An edited Record passes only if every fact that depends on the edited one
was edited with it, in every round; ``reproduce`` finds that too.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dpexp.record.record import Record, Row
from dpexp.study.experiment.records import speed_ups

DECIDED = ("execution", "data", "devices", "device_map", "shapes", "verification", "digest")
"""What the config decides on one kind of machine: equal in all runs of a cell."""
BYTES = ("bytes", "moved", "moved_back")
"""The keys of a row of the shapes with bytes that a call moves."""


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


def sweep_disagreements(sweep: Record, runs: Mapping[str, Record]) -> Iterator[str]:
    """What a sweep says of its runs, by the names of their files, and their Records do not."""
    recorded = sweep.summary
    wall_s = {
        key.removeprefix("wall_s."): value for key, value in recorded.items() if key.startswith("wall_s.")
    }
    if other := wall_s.keys() - runs.keys():
        yield f"summary.wall_s is of other runs: {', '.join(sorted(other))}"
    for name, seconds in wall_s.items():
        if name in runs and seconds < (inside := _seconds(runs[name])):
            yield f"summary.wall_s.{name} is {seconds} s, but its run alone took {inside} s"
    for name, record in runs.items():
        if record.parent != sweep.run_id:
            yield f"{name} is of sweep {record.parent}, not {sweep.run_id}"
    if recorded.get("done", 0) > len(runs) or recorded.get("failed"):
        done, failed = recorded.get("done"), recorded.get("failed")
        yield f"summary.done is {done} and summary.failed {failed}, of {len(runs)}"
    if "speed_ups" in recorded and recorded["speed_ups"] != speed_ups(runs):
        yield "summary.speed_ups are not those of the step times of its runs"


def _seconds(record: Record) -> float:
    """From the start of a run to its end."""
    started, ended = (
        datetime.fromisoformat(time or record.started) for time in (record.started, record.ended)
    )
    return (ended - started).total_seconds()


def _same(one: Any, other: Any) -> bool:
    return one == other or repr(one) == repr(other)  # the text of NaN equals itself


def unpredicted(record: Record, prediction: Row) -> list[str]:
    """What differs from the dry run of the config: execution, devices, device map, and of the first batch the
    calls, the bytes that they move, and the operations.

    A dry run has no rows of what an optimizer keeps, which it does not call.
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
    differing = [name for name, (one, other) in found.items() if one != other]
    if _bytes_differ(record.shapes, prediction["shapes"]):
        differing.append("shapes: the bytes of a call")
    if flops_differ(record.work, prediction.get("work") or {}):
        differing.append("work.flops")
    return [f"{name} is not what its config predicts" for name in differing]


def flops_differ(recorded: Row, computed: Row) -> bool:
    """Whether two counts of a step's operations, as in ``work`` of a Record, contradict each other.

    Each is *at least* so many: one that names more operators as not counted may be lower.
    """
    if "flops" not in recorded or "flops" not in computed:
        return False
    left_out, left_out_now = (set(work.get("not_counted", ())) for work in (recorded, computed))
    pairs = [(count, computed["flops"].get(name, 0)) for name, count in recorded["flops"].items()]
    is_too_low = left_out <= left_out_now and any(count < now for count, now in pairs)
    is_too_high = left_out >= left_out_now and any(count > now for count, now in pairs)
    return is_too_low or is_too_high


def _bytes_differ(recorded: Sequence[Row], predicted: Sequence[Row]) -> bool:
    """Whether a call for the first batch moves other bytes; those that the Record lacks are not compared."""
    given: dict[tuple[Any, ...], list[Row]] = {}
    for row in predicted:
        given.setdefault((row["batch"], *_place(row)), []).append(row)
    for row in (row for row in recorded if row["batch"] == 0):
        calls = given.get((0, *_place(row)), [])
        expected = calls.pop(0) if calls else {}
        for key in (key for key in BYTES if key in row):
            if any(count != expected.get(key, {}).get(name) for name, count in row[key].items()):
                return True
    return False


def _place(row: Row) -> tuple[Any, ...]:
    return row["module"], row["replica"], row["device"]


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

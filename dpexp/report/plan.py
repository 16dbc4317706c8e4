"""The sections of a dry run's report: what would run where, how a batch is split, and the shapes."""

from collections.abc import Iterator
from dataclasses import replace

from dpexp.config.words import merged, plural
from dpexp.record.batches import Batches
from dpexp.record.record import Record, Row
from dpexp.record.view import RecordView
from dpexp.report import layout, units
from dpexp.report.section import Section, short_section
from dpexp.report.sections import device_map_section, shapes_section


def plan_sections(planned: Row, *, full: bool = False) -> list[Section]:
    """The result of ``dpexp.engine.dry_run.dry_run`` as sections, short ones unless ``full``."""
    record = Record(run_id="", name=planned["name"], strategy=planned["config"]["strategy"])
    for name in ("execution", "config", "devices", "device_map", "shapes"):
        setattr(record, name, planned[name])
    head, splits = _devices(record, planned["note"]), planned["splits"]
    if any(device.startswith("rank") for row in splits for device in row["devices"]):
        record.devices = record.devices | {"used": []}  # what the other ranks hold is not predicted
    view = RecordView(record)
    shapes = shapes_section(list(_numbered(view.batches, planned["batches"])))
    parts = [_split_section(splits), shapes, device_map_section(view)]
    found = parts if full else map(short_section, parts)
    end = Section("Dry run: nothing was run or written.")
    return [head, *(part for part in found if part is not None), end]


def _devices(record: Record, note: str) -> Section:
    lines = (f"strategy {record.strategy}{layout.where(record)}", layout.emulation(record), note)
    return Section(f"Would run {record.name} ({record.execution})", tuple(filter(None, lines)))


def _split_section(splits: list[Row]) -> Section:
    """A line for each wrapper and size of batches; wrappers that split alike share one."""
    found = merged((row["module"], _split(row)) for row in splits)
    lines = tuple(f"{module or '(model)'}: {split}" for module, split in found)
    return Section("Batch split", lines or ("none: no batch is split",))


def _split(row: Row) -> str:
    """``3 batches of 30 rows -> 10 + 10 + 10 on cpu:0, cpu:1, cpu:2``."""
    batches = f"{plural(row['batches'], 'batch')} of {plural(row['rows'], 'row')}"
    pieces = units.repeated(map(str, row["pieces"]))
    return f"{batches} -> {pieces} on {units.span(row['devices'])}"


def _numbered(groups: list[Batches], counts: dict[int, int]) -> Iterator[Batches]:
    """The batches with their numbers in an epoch: a full one stands for all of its size."""
    first = 0
    for group in groups:
        count = counts.get(group.rows, len(group.numbers))
        yield replace(group, numbers=list(range(first, first + count)))
        first += count

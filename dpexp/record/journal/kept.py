"""Kept: the Record of a journal as it was before it was damaged, which may hold what the journal has lost."""

import os
from pathlib import Path

from dpexp.config.ranges import be, plural
from dpexp.record.journal.durable import read_file
from dpexp.record.journal.seal import made_from, unseal

KEPT = "record.before-damage.json"


def lost_bytes(record: Path, run_id: str, size: int) -> list[str]:
    """The damage of a journal of this size, if ``record.json`` or the kept one was made from more of it."""
    had = max(_source_bytes(path, run_id, size) for path in (record, record.with_name(KEPT)))
    return [
        f"the journal has lost its end or other lines: {size} of {plural(had, 'byte')} {be(size)} left"
    ] * (size < had)


def keep(record: Path, run_id: str, size: int, *, is_damaged: bool = False) -> None:
    """Keep ``record.json`` aside if it may hold what a journal of this size, or a damaged one, has lost.

    Raises OSError.
    """
    kept = record.with_name(KEPT)
    try:
        data, _ = unseal(read_file(record))
    except OSError:  # there is none
        return
    except ValueError:  # damaged too, or of a version without seals
        data = {"run_id": run_id, "damage": kept.exists()}
    if data.get("run_id") != run_id:
        return
    had_damage = bool(data.get("damage"))
    has_more = _source_bytes(record, run_id, size) > _source_bytes(kept, run_id, size)
    if has_more or (is_damaged and not had_damage):
        os.replace(record, kept)


def _source_bytes(path: Path, run_id: str, size: int) -> int:
    """The length of this run's journal that a sealed file was made from, if it is beyond ``size``; else 0."""
    try:
        content = read_file(path)
        source = made_from(content)
        if source is None or source["bytes"] <= size or unseal(content)[0].get("run_id") != run_id:
            return 0
    except (OSError, ValueError):
        return 0
    return int(source["bytes"])

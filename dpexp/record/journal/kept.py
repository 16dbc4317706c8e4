"""Kept: the Record of a journal as it was before it was damaged, which may hold what the journal has lost."""

import contextlib
import os
from pathlib import Path

from dpexp.record.journal.seal import made_from, unseal

KEPT = "record.before-damage.json"


def lost_bytes(record: Path, size: int) -> list[str]:
    """The damage of a journal of this size, if ``record.json`` or the kept one was made from more."""
    had = max(map(_source_bytes, (record, record.with_name(KEPT))))
    return [f"the journal has lost its end or other lines: {size} of {had} bytes are left"] * (size < had)


def keep(record: Path, size: int, *, is_damaged: bool = False) -> None:
    """Keep ``record.json`` aside if it may hold what a journal of this size, or a damaged one, has lost.

    Raises OSError.
    """
    kept = record.with_name(KEPT)
    with contextlib.suppress(FileNotFoundError, ValueError):  # there is none, or it is damaged too
        content = record.read_bytes()
        had_damage = bool(unseal(content)[0].get("damage"))
        has_more = _source_bytes(record) > max(size, _source_bytes(kept))
        if has_more or (is_damaged and not had_damage):
            os.replace(record, kept)


def _source_bytes(path: Path) -> int:
    """The length of the journal that a sealed file was made from; 0 without such a file."""
    try:
        source = made_from(path.read_bytes())
    except OSError:
        return 0
    return int(source["bytes"]) if source else 0

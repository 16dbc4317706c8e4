"""A Record without its tables, read from ``record.json`` in a tenth of a millisecond.

``record.json`` has one key a line. Comparing thousands of runs needs the short keys of each, and many
runs share the very same config and environment: so the file is cut at the keys, and only what is asked
for is parsed, equal texts once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpexp.record import RECORD, Record, load

KEYS = frozenset(
    b"run_id name strategy execution status started error config environment devices steps memory "
    b"verification summary".split()
)
SHARED = frozenset((b"config", b"environment", b"devices"))
"""Texts that many runs have in common."""
SPELLED = (b'"nan"', b'"inf"', b'"-inf"')
"""Numbers that JSON doesn't have: a file with one is read whole."""


FILING = frozenset(("run_name", "experiment", "track", "track_timeout", "seed"))
"""Config keys that don't make another config: runs that differ in them only are repeats."""

Place = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(execution, machine, work): what must be equal for two runs to be ranked against each other."""


class RunRecords:
    """Reads briefs; keeps what was parsed of texts that runs share, and what follows from them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}
        self._places: dict[tuple[int, int, str], tuple[Record, Place, str]] = {}

    def read(self, folder: Path) -> Record:
        """The run's Record with ``device_map``, ``shapes``, ``phases`` and ``timeline`` left empty.

        A run that isn't over, or a file written by other hands, is read whole. Raises JournalError.
        """
        try:
            found = self._parsed((folder / RECORD).read_bytes())
        except (FileNotFoundError, ValueError):
            return load(folder)
        return Record(**found) if len(found) == len(KEYS) else load(folder)

    def place(self, record: Record) -> tuple[Place, str]:
        """Where the run may be ranked, and its config as text without what only files it."""
        key = (id(record.config), id(record.environment), record.execution)
        if key not in self._places:  # the Record is kept, so that no other object gets these ids
            rest = {name: value for name, value in record.config.items() if name not in FILING}
            place = (record.execution, machine(record), work(record))
            self._places[key] = (record, place, json.dumps(rest, sort_keys=True))
        return self._places[key][1:]

    def _parsed(self, content: bytes) -> dict[str, Any]:
        found, own = {}, []
        for part in content.removeprefix(b'{\n "').split(b',\n "'):
            key, _, value = part.partition(b'": ')
            if key in SHARED:
                if value not in self._known:
                    self._known[value] = json.loads(value)
                found[key.decode()] = self._known[value]
            elif key in KEYS:
                own.append(part.removesuffix(b"\n}\n"))
        if any(spelled in part for part in own for spelled in SPELLED):
            return {}
        found |= json.loads(b'{"' + b',"'.join(own) + b"}")
        return found


def machine(record: Record) -> tuple[str, ...]:
    """What must be equal for times to be compared: host, processor, accelerators."""
    env = record.environment
    chips = [
        str(one.get("name")) if isinstance(one, dict) else str(one) for one in env.get("accelerators") or ()
    ]
    return (str(env.get("host")), str(env.get("cpu")), *chips)


def work(record: Record) -> tuple[str, ...]:
    """What must be equal for steps to do the same: model, data, rows, dtype, training or not."""
    config = record.config
    return tuple(str(config.get(key)) for key in ("model", "data", "batch_size", "dtype", "eval"))

"""A Record without its tables, read from ``record.json`` in a tenth of a millisecond.

``record.json`` has one key a line. A comparison of thousands of runs needs only the short keys of each, and
many runs share the same config and environment. So the file is split at the keys, and only the needed values
are parsed, equal texts once. Of the journal only the checksum is read: that it is still the same.
"""

import json
from pathlib import Path
from typing import Any

from dpexp.config.run_config import options_with_role
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.record.journal.seal import changed, made_from
from dpexp.record.record import Record
from dpexp.report.analysis.layout import accelerator_names

KEYS = frozenset(
    b"run_id parent name strategy execution status started error config files environment devices steps "
    b"memory verification summary".split()
)
SHARED = frozenset((b"config", b"files", b"environment", b"devices"))
"""Keys whose values many runs share."""
SPELLED = (b'"nan"', b'"inf"', b'"-inf"')
"""Numbers that JSON lacks: a file that contains one is read completely."""
FILING = options_with_role("delivery", "label") | {"seed", "resume"}
"""Config keys that don't make another config: runs that differ in them only are repeats."""
GroupKey = tuple[str, tuple[str, ...], tuple[str, ...]]
"""(execution, machine, work): what must be equal for two runs to be ranked against each other."""


class RunRecords:
    """Reads Records without their tables; values that runs share are parsed once."""

    def __init__(self) -> None:
        self._shared: dict[bytes, Any] = {}
        self._keys: dict[tuple[int, int, int, str], tuple[Record, GroupKey, str]] = {}

    def read(self, folder: Path) -> Record:
        """The run's Record with ``device_map``, ``shapes``, ``phases`` and ``timeline`` left empty.

        An unfinished run, or a file that is damaged, outdated or of another version, is read completely.
        Raises JournalError.
        """
        try:
            content = (folder / RECORD).read_bytes()
        except OSError:
            return load(folder)
        source = made_from(content)
        is_current = source is not None and not changed(source, folder / JOURNAL)
        found = self._parsed(content) if is_current else {}
        return Record(**found) if len(found) == len(KEYS) else load(folder)

    def keys(self, record: Record) -> tuple[GroupKey, str]:
        """The run's group key, and its config and files as text, without the options that only file it."""
        shared = (id(record.config), id(record.files), id(record.environment), record.execution)
        if shared not in self._keys:  # the Record stays referenced, so that no other object gets these ids
            env, config = record.environment, record.config
            machine = (str(env.get("host")), str(env.get("cpu")), *accelerator_names(record))
            work = tuple(str(config.get(key)) for key in ("model", "data", "batch_size", "dtype", "eval"))
            work += (_contents(record),)
            kept = {key: value for key, value in config.items() if key not in FILING}
            group_key = (record.execution, machine, work)
            self._keys[shared] = (record, group_key, json.dumps([kept, record.files], sort_keys=True))
        return self._keys[shared][1:]

    def _parsed(self, content: bytes) -> dict[str, Any]:
        found, others = {}, []
        for part in content.removeprefix(b'{\n "').split(b',\n "'):
            key, _, value = part.partition(b'": ')
            if key in SHARED:
                if value not in self._shared:
                    self._shared[value] = json.loads(value)
                found[key.decode()] = self._shared[value]
            elif key in KEYS:
                others.append(part.removesuffix(b"\n}\n"))
        if any(spelled in part for part in others for spelled in SPELLED):
            return {}
        found |= json.loads(b'{"' + b',"'.join(others) + b"}")
        return found


def _contents(record: Record) -> str:
    """The digests of the files and objects that the model and the data come from; empty without any."""
    texts = [str(record.config.get(key, "")) for key in ("model", "data")]
    texts += [text.replace(".", "/") for text in texts]  # a module, of which the file is recorded
    found = []
    for row in record.files:
        path = str(row.get("path"))
        stem = path.removesuffix("/__init__.py").removesuffix(".py")
        if any(stem in text for text in texts):
            found.append(f"{path} {str(row.get('sha256'))[:8]}")
    return ", ".join(found)

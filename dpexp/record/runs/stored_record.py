"""StoredRecord: a Record read from ``record.json`` in a third of a millisecond, its tables when looked at.

``record.json`` has one key a line. Lists and comparisons of thousands of runs need only the short keys of
each, and many runs share the same config and environment. So the file is split at the keys, and only the
needed values are parsed, equal texts once. Of the journal only the checksum is read, or for a list its
length: that it is still the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import marshal
from pathlib import Path
from typing import Any

from dpexp.record import json_text
from dpexp.record.journal.durable import read_file
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.record.journal.leftovers import remove_seen
from dpexp.record.journal.seal import changed, made_from, unseal
from dpexp.record.record import Record, check_schema
from dpexp.record.runs.cache import FOLDER, Cache

TABLES = frozenset(("device_map", "shapes", "phases", "timeline"))
"""The long keys of a Record."""
KEYS = frozenset(field.name.encode() for field in dataclasses.fields(Record)) - {
    name.encode() for name in TABLES
}
_SHARED = ("config", "files", "environment", "devices", "data")
"""Keys whose values many runs share."""
MOST_KEPT_STEPS = 250
"""Longer Records are read from their files: all that are kept are in memory at once."""
_SHORT = tuple(each.name for each in dataclasses.fields(Record) if each.default is not dataclasses.MISSING)
"""Texts and numbers. Their defaults are attributes of the class, so that none is found missing."""
_LISTED = (*_SHARED, *_SHORT)
Kept = tuple[dict[str, Any], bytes]
"""Values of a Record by key; those of keys that are needed seldom are bytes, which take less memory."""
_SPELLED = (b'"nan"', b'"inf"', b'"-inf"')
"""Numbers that JSON lacks: a file that contains one is read completely."""


class StoredRecord(Record):
    """The Record of a run's folder, whose ``TABLES`` are read from it when one is first looked at."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        super().__init__(**values)
        self._folder = folder
        for name in TABLES:
            del self.__dict__[name]

    @classmethod
    def of_kept(cls, folder: Path, kept: Kept) -> StoredRecord:
        """The Record of which ``kept`` was made."""
        record = cls.__new__(cls)
        record.__dict__ |= kept[0] | {"_folder": folder, "_others": kept[1]}
        return record

    def to_keep(self) -> Kept:
        """The keys but ``TABLES``: those that a list of comparisons needs, and the others as bytes."""
        values = {name: value for name, value in vars(self).items() if name.encode() in KEYS}
        return {name: values.pop(name) for name in _LISTED}, marshal.dumps(values)

    def __getattr__(self, name: str) -> Any:
        """Only of what is not there: a table, or a key that is kept as bytes."""
        if name in TABLES:
            complete = load(self._folder)
            self.__dict__ |= {table: getattr(complete, table) for table in TABLES}
        elif "_others" in self.__dict__:
            self.__dict__ |= marshal.loads(self.__dict__.pop("_others"))
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None


class RecordReader(contextlib.AbstractContextManager["RecordReader"]):
    """Reads the Records of folders; values that runs share are parsed once.

    Those of the folder ``runs`` are kept at the end of a ``with`` block, except long ones (see ``cache``).
    """

    def __init__(self, runs: Path | None = None) -> None:
        self._shared: dict[bytes, Any] = {}
        self._cache = None if runs is None else Cache[Kept](runs, "records", (FOLDER, RECORD, JOURNAL))

    def __enter__(self) -> RecordReader:
        if self._cache is not None:
            self._cache.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._cache is not None:
            self._cache.__exit__(*exception)

    def read(self, folder: Path) -> Record:
        """The run's Record. An unfinished run, or a file that is damaged or outdated, is read completely.

        Raises JournalError.
        """
        if self._cache is None:
            return self.stored(folder) or load(folder)
        kept = self._cache.get(folder)
        if kept is not None:
            return StoredRecord.of_kept(folder, kept)
        if not self._shared:
            self._share(self._cache)
        record = self.stored(folder)
        if isinstance(record, StoredRecord) and len(record.steps["time_ms"]) <= MOST_KEPT_STEPS:
            self._cache.keep(folder, record.to_keep())
        return record or load(folder)

    def _share(self, cache: Cache[Kept]) -> None:
        """Let the Records that are read now share values with those that are kept."""
        values = {id(listed[name]): listed[name] for listed, _ in cache.values() for name in _SHARED}
        self._shared = {json.dumps(value).encode(): value for value in values.values()}

    def stored(self, folder: Path, *, by_length: bool = False) -> Record | None:
        """The Record in ``record.json``; None where that is missing, damaged or outdated.

        ``by_length`` misses a changed byte of the journal. Raises JournalError for a newer schema.
        """
        remove_seen(folder)
        try:
            content = read_file(folder / RECORD)
            source = made_from(content)
            if source is None or changed(source, folder / JOURNAL, by_length=by_length):
                return None
            values = self._parsed(content)
            if not values:
                return Record.from_dict(unseal(content)[0])
            check_schema(values["schema"], "record")
            return StoredRecord(folder, values)
        except (OSError, ValueError, TypeError):  # also of a file that was written by hand, with a seal
            return None

    def _parsed(self, content: bytes) -> dict[str, Any]:
        """The values of ``KEYS``; none where a number is spelled as text."""
        found, others = {}, []
        for part in content.removeprefix(b'{\n "').split(b',\n "'):
            key, _, value = part.partition(b'": ')
            if (name := key.decode()) in _SHARED:
                if value not in self._shared:
                    self._shared[value] = json_text.loads(value)
                found[name] = self._shared[value]
            elif key in KEYS:
                others.append(part.removesuffix(b"\n}\n"))
        if any(spelled in part for part in others for spelled in _SPELLED):
            return {}
        found |= json_text.loads(b'{"' + b',"'.join(others) + b"}")
        return found if "schema" in found else {}

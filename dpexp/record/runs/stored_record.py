"""StoredRecord: a Record read from ``record.json`` in a third of a millisecond, its tables when looked at.

``record.json`` has one key a line. Lists and comparisons of thousands of runs need only the short keys of
each, and many runs share the same config and environment. So the file is split at the keys, and only the
needed values are parsed, equal texts once. Of the journal only the checksum is read, or for a list its
length: that it is still the same.
"""

import dataclasses
from pathlib import Path
from typing import Any

from dpexp.record import json_text
from dpexp.record.journal.durable import read_file
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.record.journal.leftovers import remove_seen
from dpexp.record.journal.seal import changed, made_from
from dpexp.record.record import Record, check_schema

TABLES = frozenset(("device_map", "shapes", "phases", "timeline"))
"""The long keys of a Record."""
KEYS = frozenset(field.name.encode() for field in dataclasses.fields(Record)) - {
    name.encode() for name in TABLES
}
_SHARED = frozenset((b"config", b"files", b"environment", b"devices", b"data"))
"""Keys whose values many runs share."""
_SPELLED = (b'"nan"', b'"inf"', b'"-inf"')
"""Numbers that JSON lacks: a file that contains one is read completely."""


class StoredRecord(Record):
    """The Record of a run's folder, whose ``TABLES`` are read from it when one is first looked at."""

    def __init__(self, folder: Path, values: dict[str, Any]) -> None:
        super().__init__(**values)
        self._folder = folder
        for name in TABLES:
            del self.__dict__[name]

    def __getattr__(self, name: str) -> Any:
        """Only of what is not there: a table."""
        if name not in TABLES:
            raise AttributeError(name)
        complete = load(self._folder)
        self.__dict__ |= {table: getattr(complete, table) for table in TABLES}
        return self.__dict__[name]


class RecordReader:
    """Reads the Records of folders; values that runs share are parsed once."""

    def __init__(self) -> None:
        self._shared: dict[bytes, Any] = {}

    def read(self, folder: Path, *, by_length: bool = False) -> Record:
        """The run's Record. An unfinished run, or a file that is damaged or outdated, is read completely.

        ``by_length`` misses a changed byte of the journal. Raises JournalError.
        """
        remove_seen(folder)
        try:
            content = read_file(folder / RECORD)
            source = made_from(content)
            is_current = source is not None and not changed(source, folder / JOURNAL, by_length=by_length)
        except OSError:
            return load(folder)
        try:
            values = self._parsed(content) if is_current else {}
            if values:
                check_schema(values["schema"], "record")
                return StoredRecord(folder, values)
            return load(folder)
        except (ValueError, TypeError):  # a file that was written by hand, with a seal
            return load(folder)

    def _parsed(self, content: bytes) -> dict[str, Any]:
        """The values of ``KEYS``; none where a number is spelled as text."""
        found, others = {}, []
        for part in content.removeprefix(b'{\n "').split(b',\n "'):
            key, _, value = part.partition(b'": ')
            if key in _SHARED:
                if value not in self._shared:
                    self._shared[value] = json_text.loads(value)
                found[key.decode()] = self._shared[value]
            elif key in KEYS:
                others.append(part.removesuffix(b"\n}\n"))
        if any(spelled in part for part in others for spelled in _SPELLED):
            return {}
        found |= json_text.loads(b'{"' + b',"'.join(others) + b"}")
        return found if "schema" in found else {}

"""A home of many runs, as if each had been run and delivered: copies of real ones under ids of their own.

A copy has its own id and signature in journal and Record, seals that fit, and in MLflow its params, tags and
last points. What no measured command reads is not copied: histories of metrics, artifacts and traces.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.record.journal.journal import JOURNAL, RECORD, encode_line
from dpexp.record.journal.reader import JournalReader
from dpexp.record.journal.seal import checksum, seal, unseal
from dpexp.record.record import Record, Row
from dpexp.record.runs.check import check_end
from dpexp.record.runs.index import folders
from dpexp.record.runs.origin import sign
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.store.store import Store

NEW = 20
"""Runs that are new when ``sync`` is measured."""
TABLES = ("runs", "params", "tags", "latest_metrics")
"""What the store has of a run, apart from histories."""


@dataclass
class Template:
    """A delivered run that is copied."""

    entries: list[Row]
    record: Record
    delivery: LedgerEntry

    @classmethod
    def read(cls, folder: Path, store: str) -> Template:
        """The template that a folder's run is."""
        entries = list(JournalReader(folder / JOURNAL))
        data, _ = unseal((folder / RECORD).read_bytes())
        return cls(entries, Record.from_dict(data), ledger.read_ledger(folder)[store])

    def copy(self, home: Path, run_id: str) -> Path:
        """Write this run under another id, checked as at its end, not delivered; returns its folder."""
        own = {"run_id": run_id, "origin": sign(home, run_id, self.record.config)}
        folder = home / "runs" / run_id
        folder.mkdir(mode=0o700)
        with open(folder / JOURNAL, "wb") as journal:
            for entry in self.entries:
                known = entry.get("set", {})
                changed = {key: own[key] for key in own.keys() & known.keys()}
                journal.write(encode_line(entry | {"set": known | changed} if changed else entry))
        record = replace(self.record, **own)
        (folder / RECORD).write_bytes(seal(record.to_json(), checksum(folder / JOURNAL)))
        check_end(folder, record)
        return folder


def make(home: Path, count: int) -> list[Template]:
    """Copy the delivered runs of this home to ``count`` more, in turn; returns what was copied."""
    store = Store.from_environment(home)
    templates = [Template.read(folder, store.name) for folder in folders(home / "runs")]
    copies: list[tuple[str, str, str]] = []
    for number in range(count):
        template, run_id = templates[number % len(templates)], f"{number:012x}"
        template.copy(home, run_id)
        copies.append((template.delivery.mlflow_run_id, uuid.uuid4().hex, run_id))
    _copy_rows(home / "mlflow.db", copies)
    points = store.points_checksums()
    for _, copied, run_id in copies:
        folder = home / "runs" / run_id
        now = checksum(folder / JOURNAL)
        entry = LedgerEntry(templates[0].delivery.experiment_id, copied, True, now["bytes"], now["crc"])
        text = json.dumps({store.name: vars(replace(entry, points_crc=points[copied]))}, indent=1)
        (folder / ledger.LEDGER).write_bytes(seal(text, {"run": run_id} | now))
    return templates


def _copy_rows(database: Path, copies: Iterable[tuple[str, str, str]]) -> None:
    """Copy the rows of MLflow runs: (the copied run, the copy, the run id in its tag)."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TEMP TABLE copies (source TEXT, copy TEXT, run_id TEXT)")
        connection.executemany("INSERT INTO copies VALUES (?, ?, ?)", copies)
        for table in TABLES:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            others = ", ".join(name for name in columns if name != "run_uuid")
            connection.execute(
                f"INSERT INTO {table} (run_uuid, {others}) SELECT copy, {others} FROM {table} "
                "JOIN copies ON source = run_uuid"
            )
        connection.execute(
            "UPDATE tags SET value = (SELECT run_id FROM copies WHERE copy = run_uuid) "
            "WHERE key = 'dpexp.run_id' AND run_uuid IN (SELECT copy FROM copies)"
        )

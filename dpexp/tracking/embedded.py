"""The SQLite store in a file of our own: checked before use, and made so that no crash can break it.

MLflow makes its schema in place, so that two first uses, or one that is killed, leave a file that never
works again. Here the schema is built in a file beside it, under a lock, and renamed when it is whole::

    mlflow.db.building    being built                               mlflow.db.lock    held meanwhile
    mlflow.db             the store: there, and whole, or not there

Nothing is made before a run begins: what never started leaves no trace.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.tracking.errors import StoreError

LOCK_WAIT_S = 60.0
"""How long another process may take to build the schema: 2 s on a quiet machine."""


@dataclass(frozen=True)
class Embedded:
    """One SQLite file that is, or will be, an MLflow store; its artifacts lie in the folder ``artifacts``."""

    path: Path
    artifacts: Path

    def check(self) -> None:
        """Raises StoreError unless the store is there and usable, or can be made."""
        folder = self.path.parent
        if not folder.is_dir():
            raise StoreError(f"the store's directory {folder} does not exist: make it, or correct the name")
        if not os.access(folder, os.W_OK):
            raise StoreError(f"the store's directory {folder} is read-only for this user")
        if self._is_there():
            self._check_file()

    def install(self) -> None:
        """Put the store in its place, unless it is there. Raises StoreError."""
        self.check()
        if self._is_there():
            self._use_wal(self.path)
            return
        with self._locked():
            if not self._is_there():
                self._build()

    # --- making ----------------------------------------------------------------------------------

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        try:
            with FileLock(self._lock_file, timeout=LOCK_WAIT_S):
                yield
        except Timeout:
            raise StoreError(
                f"another process has held {self._lock_file} for {LOCK_WAIT_S:g} s: try again, and if no "
                "dpexp runs, delete it"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot make a store at {self.path}: {error.strerror}") from error

    def _build(self) -> None:
        """MLflow's own schema and default experiment, in ``mlflow.db.building``, renamed when it is whole."""
        from mlflow.exceptions import MlflowException
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from sqlalchemy.exc import SQLAlchemyError

        building = self.path.with_name(self.path.name + ".building")
        remove(building)
        try:
            make: Any = SqlAlchemyStore
            store = make(f"sqlite:///{building}", self.artifacts.as_uri())
            store.engine.dispose()
            self._use_wal(building)
        except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
            remove(building)
            raise StoreError(f"cannot make a store at {self.path}: {first_line(error)}") from error
        os.replace(building, self.path)

    def _use_wal(self, path: Path) -> None:
        """Write-ahead logging, where the file system allows: readers and writers then wait less."""
        with contextlib.closing(sqlite3.connect(path, timeout=0.1)) as connection:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                return
            with contextlib.suppress(sqlite3.OperationalError):  # in use, or no shared memory here: as it was
                connection.execute("PRAGMA journal_mode=WAL")

    # --- checking --------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        """An empty file is none: MLflow leaves one when it is killed at its first moment."""
        try:
            return self.path.stat().st_size > 0 or not self.path.is_file()
        except FileNotFoundError:
            return False

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise StoreError(f"the store {self.path} is not a file")
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise StoreError(f"the store {self.path} is read-only for this user")
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=1.0)) as connection:
                found = self._revision(connection)
                self._check_writable(connection)
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"the store {self.path} cannot be used ({first_line(error)}): move it away, then a new one "
                "is made"
            ) from error
        if found is None:
            raise StoreError(
                f"{self.path} is an SQLite file, but not a store of MLflow: move it away, or name another one"
            )
        self._check_revision(found)

    def _revision(self, connection: sqlite3.Connection) -> str | None:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"alembic_version", "runs", "metrics"} <= tables:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None

    def _check_writable(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # another writer at work shows that it can be written
                raise

    def _check_revision(self, found: str) -> None:
        """Compare with the schema of the MLflow that is installed: it must be the same one."""
        import mlflow
        from alembic.script import ScriptDirectory

        migrations = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
        if found in migrations.get_heads():
            return
        known = {revision.revision for revision in migrations.walk_revisions()}
        if found in known:
            raise StoreError(
                f"the store {self.path} has an older schema ({found}) than MLflow {mlflow.__version__}: back "
                f"it up, then run: mlflow db upgrade sqlite:///{self.path}"
            )
        raise StoreError(
            f"the store {self.path} was written by a newer MLflow (schema {found}) than "
            f"{mlflow.__version__}, the one here: update mlflow, or name another store"
        )


def remove(path: Path) -> None:
    """Remove an SQLite file with its companions."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's text: MLflow and SQLAlchemy append whole statements."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""SqliteFile: an MLflow store in one SQLite file, checked before use and created so that no crash breaks it.

MLflow creates its schema in place. Two first uses at once, or one that is killed, leave a file that never
works again. Here the schema is built in a file beside the store, under a lock, and renamed when complete::

    mlflow.db.building    under construction                  mlflow.db.lock    locked meanwhile
    mlflow.db             the store: complete, or absent
"""

import contextlib
import functools
import os
import re
import shlex
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.tracking.errors import StoreError, first_line, short_message

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""The files of a store."""
LOCK_TIMEOUT_S = 60.0
"""How long another process may take to build the schema: 2 s on an idle machine."""


@dataclass(frozen=True)
class SqliteFile:
    """One SQLite file that is, or will be, an MLflow store; ``artifacts`` is the folder of its artifacts."""

    path: Path
    artifacts: Path

    def check(self) -> None:
        """Raises StoreError unless the store can be used or created. Creates nothing."""
        folder = self.path.parent
        misread = re.search(r"\?|%[0-9A-Fa-f]{2}", str(self.path))  # SQLAlchemy ends there, or decodes it
        if misread:
            raise StoreError(
                f"MLflow cannot open a store at {self.path}, because {misread[0]!r} in an SQLite address "
                "stands for something else: choose another DPEXP_HOME or MLFLOW_TRACKING_URI"
            )
        if not folder.is_dir():
            raise StoreError(f"the store's directory {folder} does not exist: create it, or correct the name")
        if not os.access(folder, os.W_OK):
            raise StoreError(f"the store's directory {folder} is read-only for this user")
        if self._exists():
            self._check_file()

    def create(self) -> None:
        """Create the store unless it exists. Raises StoreError."""
        self.check()
        if self._exists():
            _use_wal(self.path)
            return
        from filelock import FileLock, Timeout

        lock = self.path.with_name(self.path.name + ".lock")
        try:
            with FileLock(lock, timeout=LOCK_TIMEOUT_S):
                if not self._exists():
                    self._build()
        except Timeout:
            message = f"another process has locked {lock} for {LOCK_TIMEOUT_S:g} s: try again"
            raise StoreError(f"{message}, and delete it if no dpexp runs") from None
        except OSError as error:
            raise StoreError(f"cannot create a store at {self.path}: {error.strerror}") from error

    def _build(self) -> None:
        """Build MLflow's schema and default experiment in a file beside the store, then rename it."""
        from mlflow.exceptions import MlflowException
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from sqlalchemy.exc import SQLAlchemyError

        building = self.path.with_name(self.path.name + ".building")
        _remove(building)
        try:
            create: Any = SqlAlchemyStore
            create(f"sqlite:///{building}", self.artifacts.as_uri()).engine.dispose()
            _use_wal(building)
        except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
            _remove(building)
            raise StoreError(f"cannot create a store at {self.path}: {first_line(error)}") from error
        os.replace(building, self.path)

    def _exists(self) -> bool:
        """An empty file does not count: MLflow leaves one when it is killed early."""
        return self.path.exists() and (self.path.stat().st_size > 0 or not self.path.is_file())

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise StoreError(f"the store {self.path} is not a file")
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise StoreError(f"the store {self.path} is read-only for this user")
        try:
            revision = _revision(self.path)
        except sqlite3.DatabaseError as error:
            if "database is locked" in str(error):
                raise StoreError(f"another process keeps the store {self.path} locked: try later") from error
            if "unable to open database file" in str(error):
                raise StoreError(f"the store {self.path}: {short_message(error)}") from error
            message = f"the store {self.path} cannot be used ({first_line(error)}): move it away"
            raise StoreError(f"{message}, then a new one is created") from error
        if revision is None:
            message = f"{self.path} is an SQLite file, but not a store of MLflow: move it away"
            raise StoreError(f"{message}, or name another one")
        self._check_revision(revision)

    def _check_revision(self, revision: str) -> None:
        """Compare the schema with that of the installed MLflow: they must be the same."""
        import mlflow

        newest, known = _revisions()
        if revision in newest:
            return
        if revision in known:
            older = f"has an older schema ({revision}) than MLflow {mlflow.__version__}: back it up, then run"
            address = shlex.quote(f"sqlite:///{self.path}")
            raise StoreError(f"the store {self.path} {older}: mlflow db upgrade {address}")
        newer = f"was written by a newer MLflow (schema {revision}) than the installed {mlflow.__version__}"
        raise StoreError(f"the store {self.path} {newer}: update mlflow, or name another store")


@functools.cache
def _revisions() -> tuple[frozenset[str], frozenset[str]]:
    """The newest Alembic revisions of the installed MLflow, and all; it reads a file for each."""
    import mlflow
    from alembic.script import ScriptDirectory

    migrations = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    return frozenset(migrations.get_heads()), frozenset(each.revision for each in migrations.walk_revisions())


def _revision(path: Path) -> str | None:
    """The Alembic revision of an MLflow store; None for a database of another program."""
    with contextlib.closing(sqlite3.connect(path, timeout=1.0)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"alembic_version", "runs", "metrics"} <= tables:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None


def _use_wal(path: Path) -> None:
    """Switch to write-ahead logging where the file system supports it: readers and writers wait less."""
    connected = contextlib.closing(sqlite3.connect(path, timeout=0.1))
    # In use, or no shared memory: the file stays as it is.
    with connected as connection, contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode=WAL")


def _remove(path: Path) -> None:
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)

"""Clean files: the runs in whose own files a check has found nothing, by the SHA-256 of their bytes.

What is wrong with a run's journal, Record and profiler trace follows from their bytes and from the code that
checks. So the next check reads those bytes and computes their digest, a tenth of the work of parsing and
comparing them, and believes no time or size of a file::

    DPEXP_HOME/.cache-check-1000     one for each user (see ``signed_file``)
        {run id: [digest of the files, facts of the Record]}
    DPEXP_HOME/runs/1a2b3c/.checked  the same of one run, which was checked at its end
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from pathlib import Path

from dpexp.config.process import LOADED_NS, ROOT
from dpexp.record.journal.durable import read_file, write_atomically
from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.record.journal.kept import KEPT
from dpexp.record.profiler_trace import PROFILER_TRACE
from dpexp.record.record import Record, Row
from dpexp.record.runs.signed_file import SignedFile

FILES = (JOURNAL, RECORD, KEPT, PROFILER_TRACE)
"""The files that are compared with one another. Those of other runs and the ledger are read at each check."""
_FACTS = ("run_id", "name", "parent", "strategy", "status", "started")
"""What a check has to know of the run for that."""
_ROOMS = ("config", "record")
"""The rooms of this one and of all that it may import."""
NOTE = ".checked"
"""The file beside those of a run that were clean at its end: runs that end at once write one each."""
_Clean = tuple[str, Row]


class CleanFiles(contextlib.AbstractContextManager["CleanFiles"]):
    """What earlier checks have found clean. What this one adds is written at the end of the block."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._kept = runs, _kept(runs.parent)
        self._known: dict[str, _Clean] = json.loads(self._kept.read() or b"{}")
        self._digests: dict[str, str] = {}  # of files that are being checked
        self._is_changed = False

    def get(self, folder: Path) -> Record | None:
        """A Record with the facts of a run whose files are as they were when nothing was found; else None."""
        try:
            now = digest(folder)
        except OSError:  # which the check itself names
            return None
        if (found := self._known.get(folder.name, ("", {})))[0] != now:
            if (found := self._noted(folder))[0] != now:
                self._digests[folder.name] = now
                return None
            self._add(folder, found)
        return Record(**found[1])

    def keep(self, folder: Path, record: Record) -> None:
        """Keep that nothing is wrong with files of which ``get`` knew nothing, if they are still the same."""
        with contextlib.suppress(OSError):
            if self._digests.pop(folder.name, "") == (now := digest(folder)):
                self._add(folder, (now, _facts(record)))

    def _add(self, folder: Path, found: _Clean) -> None:
        self._known[folder.name] = found
        self._is_changed = True

    def _noted(self, folder: Path) -> _Clean:
        """What was noted at a run's end; an empty digest without, or where another code or home has."""
        body = b""
        with contextlib.suppress(OSError):
            body = self._kept.opened(read_file(folder / NOTE))
        noted: dict[str, _Clean] = json.loads(body or b"{}")
        return noted.get(folder.name, ("", {}))

    def __exit__(self, *exception: object) -> None:
        """Write what was added, without runs that were removed."""
        if self._is_changed:
            here = {name: self._known[name] for name in self._known if (self._runs / name).is_dir()}
            self._kept.write(json.dumps(here).encode())


def note(folder: Path, found: str, record: Record) -> None:
    """Note beside a run's files that nothing is wrong with them, if their digest is still what was ``found``.

    Nothing happens where that fails, as on a full disk, and in a home without a key.
    """
    kept = _kept(folder.parent.parent)
    with contextlib.suppress(OSError):
        if kept.key and digest(folder) == found:
            body = json.dumps({folder.name: (found, _facts(record))}).encode()
            write_atomically(folder / NOTE, kept.sealed(body), sync=False)


def _kept(home: Path) -> SignedFile:
    return SignedFile(home, "check", _code())


def _facts(record: Record) -> Row:
    return {name: getattr(record, name) for name in _FACTS}


def digest(folder: Path) -> str:
    """The digest of a run's ``FILES`` and id. Raises OSError where one cannot be read."""
    found = hashlib.sha256(os.fsencode(folder.name))
    for name in FILES:
        try:
            content = read_file(folder / name)
            found.update(b"/%d/" % len(content))
            found.update(content)
        except FileNotFoundError:
            found.update(b"/-/")
    return found.hexdigest()


@functools.cache
def _code() -> str:
    """The digest of what decides whether files are clean: the code, and Python, which rounds.

    A random one without sources, and where they have changed since this process loaded them.
    """
    found = hashlib.sha256(sys.version.encode())
    sources = sorted(path for room in _ROOMS for path in (ROOT / "dpexp" / room).rglob("*.py"))
    contents = [path.read_bytes() for path in sources]
    if max((path.stat().st_ctime_ns for path in sources), default=LOADED_NS) >= LOADED_NS:
        contents.append(os.urandom(32))
    for content in contents:
        found.update(b"/%d/" % len(content))
        found.update(content)
    return found.hexdigest()

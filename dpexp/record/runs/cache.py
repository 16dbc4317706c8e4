"""Cache: what was computed from the files of each run's folder, kept until one of them changes.

As the index of git: a value stands with what ``lstat`` said of the folder's files before they were read, and
counts as long as that is the same. To look at ten thousand runs then takes a tenth of a second::

    DPEXP_HOME/.cache-summaries-1000     one for each kind of value and user (see ``signed_file``)
        {run id: ([(inode, size, mtime, ctime) of each file], value)}

A wrong value is never given. A file that changed so shortly before it was read that a second change would get
the same time is not kept; the file system's own clock says which. Neither are links, pipes and folders in
place of files. Who repairs or proves reads the files themselves.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from dpexp.config.process import ROOT, without_garbage_collection
from dpexp.record.journal.leftovers import has_leftovers
from dpexp.record.runs.origin import key_of
from dpexp.record.runs.signed_file import SignedFile

SETTLED_NS = 3_000_000_000
"""How old the last change of a file must be: more than the coarsest times that a file system keeps."""
FOLDER = ""
"""Instead of a file's name: the folder of the run itself, where files come and go."""
_Stamp = tuple[tuple[int, int, int, int], ...]
_MISSING = (0, 0, 0, 0)
_T = TypeVar("_T")


class Cache(contextlib.AbstractContextManager["Cache[_T]"], Generic[_T]):
    """The values of one kind by run, which depend on nothing but ``files`` of its folder.

    Values consist of None, numbers, texts, tuples, lists and dicts. What ``get`` did not find, and ``keep``
    was given, is written at the end of the block.
    """

    def __init__(self, runs: Path, kind: str, files: Sequence[str]) -> None:
        self._runs, self._files = runs, files
        self._head = str(runs)
        self._kept = SignedFile(runs.parent, kind, _version())
        self._known: dict[str, tuple[_Stamp, _T]] = {}
        self._settled: dict[str, _Stamp] = {}  # what folders were that are being read
        self._is_changed = False

    def __enter__(self) -> Cache[_T]:
        with without_garbage_collection():
            if body := self._kept.read():
                self._known = marshal.loads(body)  # signed: this version wrote it
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_changed:
            here = {each: self._known[each] for each in self._known if os.path.lexists(self._runs / each)}
            self._kept.write(marshal.dumps(here))

    def get(self, folder: Path) -> _T | None:
        """The value of a run; None where it has to be computed, as of folders elsewhere."""
        head, _, run_id = (path := str(folder)).rpartition("/")
        if head != self._head:
            return None
        known = self._known.get(run_id)
        if known is not None and known[0] == self._stamp(path):
            return known[1]
        latest_ns = self._clock_ns - SETTLED_NS  # before the files are looked at, and then read
        stamp = self._stamp(path)
        if stamp is not None and all(max(one[2:]) < latest_ns for one in stamp) and not has_leftovers(folder):
            self._settled[run_id] = stamp
        return None

    def keep(self, folder: Path, value: _T) -> None:
        """Keep a value that ``get`` has just not found, if the files had settled."""
        if folder.name in self._settled:
            self._known[folder.name] = (self._settled[folder.name], value)
            self._is_changed = True

    def values(self) -> Iterator[_T]:
        """All that is kept."""
        return (value for _, value in self._known.values())

    def _stamp(self, folder: str) -> _Stamp | None:
        """What the files are now; None where one is something else than a file, or cannot be looked at."""
        stamp = []
        for name in self._files:
            try:
                found = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                stamp.append(_MISSING)
                continue
            except OSError:
                return None
            if not (stat.S_ISREG(found.st_mode) if name else stat.S_ISDIR(found.st_mode)):
                return None
            stamp.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return tuple(stamp)

    @functools.cached_property
    def _clock_ns(self) -> int:
        """The clock of the file system, before the first file is read; 0 where nothing can be kept."""
        try:
            with tempfile.TemporaryFile(dir=self._runs) as file:
                now = os.fstat(file.fileno()).st_mtime_ns
        except OSError:  # read-only, or full
            return 0
        return now if key_of(self._runs.parent) else 0


@functools.cache
def _version() -> str:
    """A digest of names, sizes and times of this dpexp's files; a random one where it has no sources."""
    sources = sorted((ROOT / "dpexp").rglob("*.py"))
    stats = [(str(path), (found := path.stat()).st_size, found.st_mtime_ns) for path in sources]
    return hashlib.sha256(repr((sys.version, stats or os.urandom(32))).encode()).hexdigest()

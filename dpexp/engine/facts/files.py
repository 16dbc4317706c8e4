"""Files: hashes of the files, folders and live objects that a run uses, which show a repeat what changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from dpexp import live
from dpexp.engine.facts.references import Reference
from dpexp.record.record import Row


def file_hashes(named: Iterable[Reference], data_sha256: str = "") -> list[Row]:
    """``{path, sha256}`` of each file, folder and live object among the references, and that is there.

    ``data_sha256`` is that of the samples, for data that is a live object.
    """
    named = list(named)
    paths = sorted({path for reference in named for path in reference.paths})
    found = {path: _sha256(path) for path in paths}
    for reference in named:
        if reference.is_live:
            digest = data_sha256 if reference.option == "data" else ""
            found[reference.text] = digest or live.sha256(reference.text)
    return [{"path": path, "sha256": digest} for path, digest in found.items() if digest]


def directory(files: Iterable[Row]) -> Row:
    """``directory`` of an environment: where relative paths among these files start; empty without any."""
    return {"directory": str(Path.cwd())} if any(is_relative(row["path"]) for row in files) else {}


def is_relative(path: str) -> bool:
    """Whether a path of ``files`` is that of a file, and starts at the working directory."""
    return not path.startswith(live.PREFIX) and not Path(path).expanduser().is_absolute()


def _sha256(path: str) -> str | None:
    """Of a file, or of a folder's text files and their names; None where there is none that can be read."""
    found = Path(path).expanduser()
    try:
        if found.is_dir():
            return _folder_sha256(found)
        if not found.is_file():
            return None
        with open(found, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _folder_sha256(folder: Path) -> str:
    from dpexp.data.sources.text import SUFFIXES

    paths = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    texts = sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())
    digest = hashlib.sha256()
    for path in texts:
        digest.update(f"{path.relative_to(folder)}\0{_sha256(str(path))}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()

r"""References: what the options of a config name, code and files.

config --> factories --> the model, the data, the loss and the optimizer of a run
               \--> references --> the files of its Record, whose hashes show a repeat what changed
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpexp.config.factories import Aliases, Factory, find
from dpexp.config.options import flag_name
from dpexp.config.run_config import RunConfig
from dpexp.data.registry import LOSSES, SOURCES
from dpexp.models.registry import MODELS
from dpexp.record.record import Row
from dpexp.training.registry import OPTIMIZERS

ALIASES: Mapping[str, Aliases] = {
    "model": MODELS,
    "data": SOURCES,
    "loss": LOSSES,
    "metrics": {},
    "validation": SOURCES,
    "optimizer": OPTIMIZERS,
}
"""The options of every strategy that name code, and the names that each knows."""


def factories(config: RunConfig, objects: Mapping[str, Any] | None = None) -> dict[str, Factory]:
    """What the options of a config name, by option; nothing is imported. Raises ConfigError as ``find``.

    ``objects`` are those that a program gave, by option.
    """
    given = {name: getattr(config, name) for name in ALIASES}
    found = {name: find(flag_name(name), text, ALIASES[name]) for name, text in given.items() if text}
    live = {name: replace(found[name], live=value) for name, value in (objects or {}).items()}
    return found | live | config.options.factories


@dataclass(frozen=True)
class Reference:
    """What an option names."""

    option: str
    text: str
    factory: Factory

    @property
    def paths(self) -> tuple[str, ...]:
        """The file or folder as the user wrote it, or where a module of the working directory may be."""
        if self.factory.is_live:
            return ()
        if self.factory.name:  # of dpexp
            path = self.factory.options.get("path")
            return () if path is None else (str(path),)
        if self.factory.module.endswith(".py"):
            return (self.factory.module,)
        module = self.factory.module.replace(".", "/")
        return (f"{module}.py", f"{module}/__init__.py")


def references(config: RunConfig, found: Mapping[str, Factory] | None = None) -> list[Reference]:
    """All that the options name, with the ``factories`` of the config where these are known.

    Imports nothing of it. Raises ConfigError as ``factories``.
    """
    found = factories(config) if found is None else found
    parts = (config, config.options)
    texts = {name: getattr(part, name) for part in parts for name in found if hasattr(part, name)}
    return [Reference(name, texts[name], factory) for name, factory in found.items()]


def file_hashes(named: Iterable[Reference]) -> list[Row]:
    """``{path, sha256}`` of each file among the references that is there."""
    paths = sorted({path for reference in named for path in reference.paths})
    found = {path: _sha256(path) for path in paths}
    return [{"path": path, "sha256": digest} for path, digest in found.items() if digest]


def _sha256(path: str) -> str | None:
    found = Path(path).expanduser()
    try:
        if not found.is_file():
            return None
        with open(found, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def directory(files: Iterable[Row]) -> Row:
    """``directory`` of an environment: where relative paths among these files start; empty without any."""
    is_needed = any(not Path(row["path"]).expanduser().is_absolute() for row in files)
    return {"directory": str(Path.cwd())} if is_needed else {}

"""References: the code and files that a config names, which are not part of dpexp."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp import live
from dpexp.config.options import flag_name, spec_options
from dpexp.config.run_config import RunConfig
from dpexp.config.spec import Entry, Spec, parse
from dpexp.data.registry import LOSSES, SOURCES
from dpexp.models.registry import MODELS
from dpexp.record.record import Row
from dpexp.training.optimizer_names import OPTIMIZERS

REGISTRIES: dict[str, dict[str, Entry]] = {
    "model": MODELS,
    "data": SOURCES,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "layout": {},
}
"""The names of dpexp's own for the options that have some; what another ``SPEC`` option names is outside."""


@dataclass(frozen=True)
class Reference:
    """What an option names; ``spec`` is None for an option without a registry."""

    flag: str
    text: str
    spec: Spec | None

    @property
    def paths(self) -> tuple[str, ...]:
        """The file or folder as the user wrote it, or where a module of the working directory may be."""
        if self.spec is None:
            return ()
        if self.spec.argument:
            return (self.spec.argument,)
        module = self.spec.factory.rpartition(":")[0]
        if f"{module}:" == live.PREFIX:
            return ()
        if module.endswith(".py"):
            return (module,)
        path = module.replace(".", "/")
        return (f"{path}.py", f"{path}/__init__.py")

    def __str__(self) -> str:
        """What a run would do with it."""
        option = f"{self.flag} {self.text}"
        if self.spec is None:
            return f"{option} uses {self.text}"
        if self.spec.argument:
            return f"{option} reads {self.spec.argument}"
        module, _, name = self.spec.factory.rpartition(":")
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.spec.options.items())
        return f"{option} imports {module} and calls {name}({arguments})"


def references(config: RunConfig) -> Iterator[Reference]:
    """All that a config names outside of dpexp. Imports nothing of it. Raises ConfigError as ``parse``."""
    for part in (config, config.options):
        for name in spec_options(type(part)):
            value, flag = getattr(part, name), flag_name(name)
            for text in filter(None, [value] if isinstance(value, str) else value or ()):
                registry = REGISTRIES.get(name)
                spec = None if registry is None else parse(text, registry, flag, name)
                if spec is None or not spec.name or spec.argument is not None:
                    yield Reference(flag, text, spec)


def file_hashes(config: RunConfig, data_sha256: str = "") -> list[Row]:
    """``{path, sha256}`` of each file, folder and live object that the config names, and that is there.

    ``data_sha256`` is that of the samples, for data that is a live object.
    """
    paths = sorted({path for reference in references(config) for path in reference.paths})
    found = [{"path": path, "sha256": sha256(path)} for path in paths]
    for reference in references(config):
        if reference.text.startswith(live.PREFIX):
            is_data = reference.flag == flag_name("data") and data_sha256
            digest = data_sha256 if is_data else live.sha256(reference.text)
            found.append({"path": reference.text, "sha256": digest})
    return [row for row in found if row["sha256"]]


def directory(files: Iterable[Row]) -> Row:
    """``directory`` of an environment: where relative paths among these files start; empty without any."""
    return {"directory": str(Path.cwd())} if any(is_relative(row["path"]) for row in files) else {}


def is_relative(path: str) -> bool:
    """Whether a path of ``files`` is that of a file, and starts at the working directory."""
    return not path.startswith(live.PREFIX) and not Path(path).expanduser().is_absolute()


def sha256(path: str) -> str | None:
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
        digest.update(f"{path.relative_to(folder)}\0{sha256(str(path))}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()

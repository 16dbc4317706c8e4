"""Imports: modules that an option names, of the working directory too, and Python files."""

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType


def import_named(name: str) -> ModuleType:
    """The module of this dotted name. Raises whatever its import raises."""
    _add_to_path(Path.cwd())
    return importlib.import_module(name)


def import_file(text: str) -> ModuleType:
    """The module of a Python file, imported once for each content: a model and its data may share a file.

    Raises whatever its import raises.
    """
    path = Path(text).expanduser().resolve()
    name = f"dpexp_user_{path.stem}_{zlib.crc32(bytes(path) + path.read_bytes()):08x}"
    if name not in sys.modules:
        _add_to_path(path.parent)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _add_to_path(folder: Path) -> None:
    """Let imports find modules of this folder, after all installed ones."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

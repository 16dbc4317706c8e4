"""Imports follow the layers: a line of the diagram imports only lines below it, left and right never meet.

Every import counts: at the top of a module, late inside a function, under ``TYPE_CHECKING`` (a type that
comes from above is a dependency on what is above), and ``importlib.import_module`` with a literal name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = """
commands
dpexp
study
run
engine                           |  tracking
verification  measurement        |  report
training                         |
strategies                       |
parallel  models  data  timing   |
distributed                      |
devices                          |
tensors                          |
record  live
config
"""
"""``dpexp`` is the package's public names; a line without a bar spans both sides."""

ONLY_IN = {"mlflow": {"tracking"}, "matplotlib": {"report", "study"}}
"""Who may import a heavy library, late or not."""

WITHOUT_TORCH = {"config", "record", "tracking", "report"}
WITHOUT_CONFIG = {"training", "verification", "measurement", "models", "data", "parallel", "timing"}
"""They take what they work on, so that one's own loop and ``dpexp.prove`` use them as a run does."""

OUTSIDE = {"scripts", "experiments", "tests"}
HEAVY = {"torch", "mlflow", "matplotlib", "pandas"}
IMPORTING_CALLS = {"importlib.import_module", "import_module", "__import__"}
REGISTRIES = ("dpexp.models.registry", "dpexp.data.registry", "dpexp.training.optimizer_names")
LIGHT_MODULES = ("dpexp", "dpexp.config", "dpexp.record", "dpexp.report", "dpexp.tracking", *REGISTRIES)


@dataclass(frozen=True)
class Place:
    """Where a unit stands: its line, counted from the top, and its side (left, right or both)."""

    line: int
    side: str

    def sees(self, other: Place) -> bool:
        """Whether a unit here may import one there."""
        same_side = self.side == other.side or "both" in (self.side, other.side)
        return self.line < other.line and same_side


def places(layers: str) -> dict[str, Place]:
    """The place of every unit in the diagram."""
    found = {}
    for number, line in enumerate(layers.strip().splitlines()):
        left, bar, right = line.partition("|")
        found |= {unit: Place(number, "left" if bar else "both") for unit in left.split()}
        found |= {unit: Place(number, "right") for unit in right.split()}
    return found


PLACES = places(LAYERS)


def unit_of(module: str) -> str:
    """``dpexp.report.table`` -> ``report``; ``dpexp`` -> ``dpexp``."""
    return module.split(".")[1] if "." in module else module


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a file imports; ``from a import b`` gives ``a.b``."""
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTING_CALLS:
            yield from ((node.lineno, str(a.value)) for a in node.args[:1] if isinstance(a, ast.Constant))


def target_unit(name: str, root: Path) -> str:
    """The unit of an imported dotted name of dpexp; ``dpexp`` for a public name of the package."""
    unit = unit_of(name)
    there = (root / "dpexp" / unit).is_dir() or (root / "dpexp" / f"{unit}.py").is_file()
    return unit if there else "dpexp"


def violations(root: Path) -> list[str]:
    """Every import of the package and the scripts that the layers forbid, as ``file:line: what``."""
    found = []
    for path in sorted([*root.glob("dpexp/**/*.py"), *root.glob("scripts/**/*.py")]):
        file = path.relative_to(root)
        unit = "scripts" if file.parts[0] == "scripts" else unit_of(module_name(path, root))
        if unit not in PLACES and unit != "scripts":
            found.append(
                f"{file}:1: '{unit}' has no place in the layers: give it one in tests/test_layers.py"
            )
            continue
        for line, name in imports(path, root):
            wrong = _wrong(unit, name, root)
            if wrong:
                found.append(f"{file}:{line}: imports {name}: {wrong}")
    return found


def _wrong(unit: str, name: str, root: Path) -> str | None:
    """What is wrong with this unit's import of this name; None where it may."""
    top = name.partition(".")[0]
    if unit not in ONLY_IN.get(top, {unit}):
        return f"only {', '.join(sorted(ONLY_IN[top]))} may import {top}"
    if top == "torch" and unit in WITHOUT_TORCH:
        return f"{unit} works without torch"
    if unit in WITHOUT_CONFIG and name.startswith("dpexp.config.run_config"):
        return f"{unit} knows no config of a run"
    if unit == "scripts":
        return None
    if top in OUTSIDE:
        return f"the package knows nothing of {top}"
    if top == "dpexp":
        target = target_unit(name, root)
        if target != unit and not (target in PLACES and PLACES[unit].sees(PLACES[target])):
            return f"'{unit}' may import only what stands below it on its side, and '{target}' does not"
    return None


def imported_files(root: Path) -> dict[str, set[str]]:
    """The modules of dpexp that each module of dpexp imports, late or not; not those of its own packages."""
    paths = {module_name(path, root): path for path in root.glob("dpexp/**/*.py")}
    edges: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = {name for _, name in imports(path, root)}
        found = {name if name in paths else name.rpartition(".")[0] for name in named}
        edges[module] = {name for name in found if name in paths and name != module}
    return edges


def circles(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules that import each other, over however many others."""

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), list(edges[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += edges.get(module, ())
        return seen

    return sorted(module for module in edges if module in reached(module))


def imported_by(*arguments: str) -> set[str]:
    """Every module that a fresh interpreter imports when it runs these arguments, by its own account."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-500:]
    lines = (line for line in run.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


# --- the repository ------------------------------------------------------------------------------


def test_every_import_follows_the_layers() -> None:
    assert not (found := violations(ROOT)), "\n".join(found)


def test_no_files_import_each_other() -> None:
    assert circles(imported_files(ROOT)) == []


def test_no_room_shows_more_than_twelve_files() -> None:
    rooms = Counter(path.parent for path in ROOT.glob("dpexp/**/*.py") if path.name != "__init__.py")
    assert len(rooms) > 20
    assert {str(room): count for room, count in rooms.items() if count > 12} == {}


def test_every_unit_of_the_layers_is_looked_at() -> None:
    """An empty walk would pass: the units that are there are those whose files were read."""
    seen = {unit_of(module_name(path, ROOT)) for path in ROOT.glob("dpexp/**/*.py")}
    assert {"config", "record", "devices", "run", "tracking", "report"} <= seen


def test_architecture_page_shows_these_layers() -> None:
    assert LAYERS in (ROOT / "docs" / "architecture.md").read_text().replace("\nscripts  experiments", "")


def test_architecture_page_has_every_room_and_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {each.group(1) for each in re.finditer(r"^\| `(\w+)(?:/|\.py)` \|", page, re.MULTILINE)}
    assert rooms == PLACES.keys() - {"dpexp"}
    named = set(re.findall(r"\b(?:dpexp|tests)/[\w/]+\.py\b", page))
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_a_light_module_brings_no_heavy_library(module: str) -> None:
    imported = imported_by("-c", f"import {module}")
    assert module in imported
    assert not imported & HEAVY


SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("[a-z]*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script_brings_no_heavy_library(script: str) -> None:
    imported = imported_by(f"scripts/{script}", "--help")
    assert "typer" in imported
    assert not imported & HEAVY


def test_help_and_version_of_the_installed_command_bring_no_heavy_library() -> None:
    for option in ("--help", "--version"):
        start = f"import sys; sys.argv = ['dpexp', {option!r}]; from dpexp.commands.main import main; main()"
        imported = imported_by("-c", start)
        assert "dpexp.commands.sweep" in imported
        assert not imported & HEAVY


def test_help_of_a_strategy_brings_no_heavy_library() -> None:
    assert not imported_by("scripts/run.py", "hybrid", "--help") & HEAVY


# --- the checker itself --------------------------------------------------------------------------

FORBIDDEN = {
    "up": ("dpexp/devices.py", "from dpexp.engine import run", "dpexp.engine"),
    "same line": ("dpexp/timing.py", "import dpexp.models", "dpexp.models"),
    "left to right": ("dpexp/engine/loop.py", "from dpexp import tracking", "dpexp.tracking"),
    "right to left": ("dpexp/report/table.py", "from dpexp.timing import Timer", "dpexp.timing"),
    "right, relative": ("dpexp/report/table.py", "from ..devices import label", "dpexp.devices"),
    "late": ("dpexp/record.py", "def f():\n    from dpexp.run import run", "dpexp.run"),
    "for a type only": ("dpexp/config.py", "if TYPE_CHECKING:\n    import dpexp.models", "dpexp.models"),
    "by a call": ("dpexp/tracking/live.py", "importlib.import_module('dpexp.engine')", "dpexp.engine"),
    "report to tracking": ("dpexp/report/table.py", "import dpexp.tracking", "dpexp.tracking"),
    "the package's public name": ("dpexp/engine/loop.py", "from dpexp import RunConfig", "dpexp.RunConfig"),
    "mlflow on the left": ("dpexp/engine/loop.py", "def f():\n    import mlflow", "only tracking"),
    "mlflow in a script": ("scripts/run.py", "from mlflow import log_metric", "only tracking"),
    "matplotlib": ("dpexp/tracking/live.py", "import matplotlib.pyplot as plt", "only report, study"),
    "torch on the right": ("dpexp/report/table.py", "import torch.nn", "works without torch"),
    "a script": ("dpexp/run.py", "from scripts.run import app", "knows nothing of scripts"),
    "a run's config": ("dpexp/timing.py", "from dpexp.config.run_config import f", "knows no config"),
    "no place": ("dpexp/helpers.py", "import os", "no place"),
}
ALLOWED = {
    "dpexp/__init__.py": "def __getattr__(name):\n    from dpexp.run import run\n    return run",
    "dpexp/run.py": "from dpexp import engine, tracking\nfrom dpexp.record.record import Record",
    "dpexp/engine/__init__.py": "",
    "dpexp/engine/loop.py": "import torch\nfrom dpexp import strategies\nfrom ..timing import Timer",
    "dpexp/timing.py": "",
    "dpexp/config.py": "",
    "dpexp/record.py": "",
    "dpexp/tracking/__init__.py": "",
    "dpexp/tracking/live.py": "import mlflow\nfrom dpexp.report import table\nfrom . import sync",
    "dpexp/tracking/sync.py": "from dpexp.record import fold",
    "dpexp/report/__init__.py": "",
    "dpexp/report/table.py": "import matplotlib.pyplot\nfrom dpexp.record.record import Record",
    "scripts/run.py": "from dpexp.run import run",
}
PACKAGES = ("dpexp", "engine", "tracking", "report")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository that keeps the layers, with every unit of the diagram."""
    stubs = {f"dpexp/{unit}.py": "" for unit in PLACES if unit not in PACKAGES}
    for name, source in (stubs | ALLOWED).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_checker_accepts_what_the_layers_allow(tree: Path) -> None:
    assert violations(tree) == []


@pytest.mark.parametrize("case", FORBIDDEN)
def test_checker_catches(case: str, tree: Path) -> None:
    file, source, words = FORBIDDEN[case]
    (tree / file).write_text(source)
    (found,) = violations(tree)
    assert found.startswith(f"{file}:{source.count(chr(10)) + 1}: ")
    assert words in found


def test_checker_catches_a_circle_of_files(tree: Path) -> None:
    (tree / "dpexp/report/page.py").write_text("def f():\n    from dpexp.report import table")
    (tree / "dpexp/report/list.py").write_text("from dpexp.report.page import f")
    assert circles(imported_files(tree)) == []
    (tree / "dpexp/report/table.py").write_text("from dpexp.report.list import f")
    assert circles(imported_files(tree)) == ["dpexp.report.list", "dpexp.report.page", "dpexp.report.table"]


def test_checker_sees_an_import_at_run_time() -> None:
    assert "wave" in imported_by("-c", "import wave")
    assert "wave" not in imported_by("-c", "pass")

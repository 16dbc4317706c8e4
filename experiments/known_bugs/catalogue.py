"""The known bugs: each a file of ``bugs/`` with constants, which are read without importing it.

    LINK       where it was found, or mended
    RELEASE    what is run: the release that has it, or the one that a line of is changed
    PACKAGE    whose small models it uses: a folder of public_layouts/layouts, or pytorch for its own
    MESH       the ranks; "" for one process
    MODULE     the module whose output or gradient is the first to be wrong

and functions: ``model()``, perhaps ``batches()``, and the layouts ``wrong(model, mesh)`` and ``mended(model, mesh)``.
"""

import ast
from dataclasses import dataclass
from math import prod
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUGS = HERE / "bugs"


@dataclass(frozen=True)
class Bug:
    """A silent error that others found; ``what`` is its file's first line."""

    name: str
    what: str
    link: str
    release: str
    package: str
    mesh: str
    module: str

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of the mesh; none for one process."""
        return {name: int(size) for name, size in (part.split("=") for part in self.mesh.split(",") if part)}

    @property
    def ranks(self) -> int:
        return prod(self.sizes.values())

    @property
    def packages(self) -> tuple[str, ...]:
        """What is installed beside torch for it."""
        return () if self.package == "pytorch" else (self.package,)


def bugs() -> list[Bug]:
    """All known bugs by name."""
    return [_read(path) for path in sorted(BUGS.glob("*.py"))]


def _read(path: Path) -> Bug:
    tree = ast.parse(path.read_text())
    found = {
        line.targets[0].id.lower(): ast.literal_eval(line.value)
        for line in tree.body
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and line.targets[0].id.isupper()
    }
    return Bug(path.stem, ast.get_docstring(tree) or "", **found)

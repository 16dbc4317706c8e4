"""Known bugs: an error that somebody reported, as it was and as it is fixed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Bug:
    """``function`` lays a model out, or runs a loop; its last argument says whether it is the wrong one.

    ``model`` makes the model of a layout, ``proof(model)`` its batches and its loss; of a loop both are None.
    ``module`` is the one in which the error lies, by what was said where it was fixed.
    """

    link: str
    package: str
    run: str
    function: Callable[..., Any]
    mesh: str = ""
    ranks: int = 0
    module: str = ""
    model: Callable[[], Any] | None = None
    proof: Callable[[Any], tuple[Any, Any]] | None = None

    @property
    def what(self) -> str:
        """What is wrong."""
        return (self.function.__doc__ or "").strip()

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of the mesh; none for one process."""
        return {name: int(size) for name, size in (part.split("=") for part in self.mesh.split(",") if part)}


def bug(link: str, package: str, run: str, **options: Any) -> Callable[[Any], Bug]:
    """A layout ``(model, mesh, is_wrong)`` that ``dpexp.prove`` judges."""

    def decorate(function: Any) -> Bug:
        found = Bug(link, package, run, function, **options)
        return Bug(**{**vars(found), "ranks": prod(found.sizes.values()) if found.sizes else 0})

    return decorate


def loop(
    link: str, package: str = "pytorch", run: str = "a loop of plain PyTorch", ranks: int = 0
) -> Callable[[Any], Bug]:
    """A training loop ``(is_wrong)`` that ``dpexp.watch`` judges."""
    return lambda function: Bug(link, package, run, function, ranks=ranks)

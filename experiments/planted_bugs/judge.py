"""Judge the planted bugs: is each one caught, and the right module named? And does every right layout pass?

python experiments/planted_bugs/judge.py                       # all, on 2, 3 and 4 ranks; writes the table
python experiments/planted_bugs/judge.py tp_1 dp_3 --ranks 2   # these; prints what verification says
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE / "layouts")]

import tables
import typer

RANKS = (2, 3, 4)
STEPS = (12, 7, 12)
"""Rows of the batches: one that divides evenly by 2, 3 and 4, and one that does not."""

NAMED = (
    r"the first output in forward order that differs is of (?:the wrapper around )?(?:module '([^']*)'|the model)",
    r"the first gradient in backward order that differs is of parameter '([^']*)\.[^.']*'",
    r"after step \d+: (?:parameters|optimizer) \(([^)]*)\.[^.)]*\)",
    r": buffers \(([^)]*)\.[^.)]*\)",
)
"""Where a message names a module, the first that it does."""


@dataclass(frozen=True)
class Verdict:
    """What verification says of a layout over this many ranks; ``error`` is what it raised instead."""

    layout: str
    ranks: int
    passed: bool
    message: str = ""
    named: str = ""
    is_right: bool | None = None


@dataclass(frozen=True)
class Layout:
    """A layout with its answer; a right one has no ``bug``."""

    name: str
    model: str
    mesh: str
    bug: str = ""
    module: str | list[str] = ""
    words: str = ""

    @property
    def worlds(self) -> tuple[int, ...]:
        """The numbers of ranks over which it is laid."""
        return (4,) if "=" in self.mesh else RANKS

    def judged(self, ranks: int, passed: bool, message: str) -> Verdict:
        """The verdict on what verification has said."""
        expected = self.module if isinstance(self.module, str) else self.module[RANKS.index(ranks)]
        named = named_module(message)
        is_right = named == expected and self.words.format(n=ranks) in message
        return Verdict(self.name, ranks, passed, message, named, is_right if self.bug else None)

    def sizes(self, ranks: int) -> dict[str, int]:
        """The dimensions of the mesh."""
        if "=" not in self.mesh:
            return {self.mesh: ranks}
        return {name: int(size) for name, size in (part.split("=") for part in self.mesh.split(","))}


def catalogue() -> dict[str, Layout]:
    """All layouts by name."""
    answers = tomllib.loads((HERE / "answers.toml").read_text())
    return {name: Layout(name, **answer) for name, answer in answers.items()}


def named_module(message: str) -> str:
    """The module that a message names; empty for none, and for the model itself."""
    found = [match for pattern in NAMED if (match := re.search(pattern, message))]
    return (min(found, key=lambda match: match.start())[1] or "") if found else ""


def prove(layout: Layout, ranks: int) -> Verdict:
    """Prove one layout; under torchrun every rank must call this."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    import dpexp
    from dpexp.verification.result import VerificationError

    torch.manual_seed(0)
    model = getattr(import_module("models"), layout.model)()
    batches = [model.example(rows, torch.Generator().manual_seed(rows)) for rows in STEPS]
    parallelize = import_module(layout.name).parallelize
    where: dict[str, Any] = {"devices": [torch.device("cpu", index) for index in range(ranks)]}
    if layout.mesh != "devices":
        sizes = layout.sizes(ranks)
        where = {"mesh": init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))}
    try:
        dpexp.prove(model, parallelize, batches, nn.functional.mse_loss, torch.optim.Adam, **where)
    except VerificationError as error:
        return layout.judged(ranks, False, str(error))
    return layout.judged(ranks, True, "")


def of_ranks(names: list[str]) -> None:
    """Prove the layouts as a rank of torchrun; the first rank prints the verdicts."""
    from torch import distributed

    distributed.init_process_group("gloo")
    layouts = catalogue()
    found = [prove(layouts[name], distributed.get_world_size()) for name in names]
    if distributed.get_rank() == 0:
        print(json.dumps([asdict(verdict) for verdict in found]), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def verdicts(names: list[str], ranks: int) -> list[Verdict]:
    """The verdicts on these layouts over this many ranks, as far as they can be laid out across them."""
    layouts = [layout for name, layout in catalogue().items() if name in names and ranks in layout.worlds]
    found = [prove(layout, ranks) for layout in layouts if layout.mesh == "devices"]
    in_ranks = [layout.name for layout in layouts if layout.mesh != "devices"]
    if in_ranks:
        printed = output_of([*torchrun(ranks), __file__, *in_ranks])
        found += [Verdict(**row) for row in json.loads(printed)]
    return found


def torchrun(ranks: int) -> list[str]:
    """The start of a command line that runs a script as this many ranks."""
    return [sys.executable, *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"], str(ranks)]


def output_of(command: list[str]) -> str:
    """The last line that a command prints."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.splitlines()[-1]


def judged_models(ranks: int) -> list[dict[str, Any]]:
    """The rows of ``every_model`` over this many virtual devices and ranks."""
    script = str(HERE / "every_model.py")
    rows: list[dict[str, Any]] = json.loads(output_of([sys.executable, script, str(ranks)]))
    return rows + json.loads(output_of([*torchrun(ranks), script]))


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Layouts; all of them without one.")] = None,
    ranks: Annotated[list[int] | None, typer.Option(help="2, 3 or 4; all of them without one.")] = None,
) -> None:
    """Prove layouts; without arguments all of them and every model, and write the records and the table."""
    if "RANK" in os.environ:
        of_ranks(names or [])
        return
    chosen = names or list(catalogue())
    if unknown := sorted(set(chosen) - set(catalogue())):
        raise SystemExit(f"there is no layout {', '.join(unknown)}; there are {', '.join(catalogue())}")
    found = [verdict for count in ranks or RANKS for verdict in verdicts(chosen, count)]
    for verdict in found:
        print(f"{verdict.layout} over {verdict.ranks}: {verdict.message or 'proven'}\n")
    if not names and not ranks:
        tables.write(layouts=[asdict(verdict) for verdict in found])
        tables.write(models=[row for count in RANKS for row in judged_models(count)])


if __name__ == "__main__":
    typer.run(main)

"""Judge known bugs: does dpexp find each, by which comparison, and name its module? And does it pass once mended?

python experiments/known_bugs/judge.py                    # all; writes the verdicts and README's table
python experiments/known_bugs/judge.py nanogpt_30         # this one; prints what verification says
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[0] = str(ROOT)  # not this folder: its files are imported by their full names

import typer

from experiments import forked_ranks
from experiments.known_bugs import tables
from experiments.known_bugs.catalogue import BUGS, Bug, bugs

LAYOUTS = ROOT / "experiments" / "public_layouts" / "layouts"
PATIENCE_S = 150.0
"""A proof that takes longer is killed."""

ROWS = (6, 5)
PRELOADED = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torchtitan", "transformers", "dpexp")
SIDES = ("wrong", "mended")
KIND = re.compile(r"step \d+ \(\d+ rows\): (\w+)|after step \d+: (\w+)")
"""What a message says first: the kind of tensors that differ."""


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Known bugs; all of them without one.")] = None,
) -> None:
    """Prove known bugs and what they are once mended, and write their verdicts."""
    os.environ |= forked_ranks.ENVIRONMENT | {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    for name in PRELOADED:
        import_module(name)
    found = [bug for bug in bugs() if not names or bug.name in names]
    for bug in found:
        rows = [verdict(bug, side) for side in SIDES]
        tables.keep(rows)
        for row in rows:
            print(f"{bug.name}, {row['side']}: {row['message'] or 'proven'}\n", flush=True)
    tables.write()


def verdict(bug: Bug, side: str) -> dict[str, Any]:
    """What verification says of one side of a bug."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        forked_ranks.run(bug.ranks, lambda: prove(bug, side, home), home, PATIENCE_S)
        written = home / "said"
        said = json.loads(written.read_text()) if written.exists() else {}
        if not said:
            said = {
                "ended": "died",
                "message": "\n".join(
                    (home / f"printed-{rank}").read_text()[-700:] for rank in range(bug.ranks)
                ),
            }
    found = KIND.search(said["message"])
    by = next(filter(None, found.groups())) if found and said["ended"] == "VerificationError" else ""
    row = {"bug": bug.name, "side": side, **said, "by": by, "named": tables.named_module(said["message"])}
    return row | {"packages": {name: metadata.version(name) for name in ("torch", *bug.packages)}}


def prove(bug: Bug, side: str, home: Path) -> None:
    """Prove one side of a bug as a rank, or alone, and write what was said."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    import dpexp
    from dpexp.verification.result import VerificationError

    sys.path[:0] = [str(HERE), str(BUGS), str(LAYOUTS / bug.package)]
    torch.set_num_threads(1)
    where: dict[str, Any] = {}
    if bug.sizes:
        distributed.init_process_group("gloo")
        where = {"mesh": init_device_mesh("cpu", tuple(bug.sizes.values()), mesh_dim_names=tuple(bug.sizes))}
    module = import_module(bug.name)
    torch.manual_seed(0)
    model = module.model()
    batches, loss = batches_of(module, model)
    try:
        result = dpexp.prove(model, getattr(module, side), batches, loss, **where)
        said = {"ended": "proven", "message": "", **largest(result)}
    except VerificationError as error:
        said = {"ended": "VerificationError", "message": str(error)}
    if not bug.sizes or distributed.get_rank() == 0:
        (home / "said").write_text(json.dumps(said))


def largest(result: Any) -> dict[str, Any]:
    """The largest error of a proof, and the tolerance."""
    return {"error": result.largest.error if result.largest else 0.0, "tolerance": result.tolerance}


def batches_of(module: Any, model: Any) -> tuple[list[tuple[Any, Any]], Callable[..., Any] | None]:
    """The batches of a bug: its own, or those of the model that it takes from public_layouts; and their loss."""
    import torch

    if hasattr(module, "batches"):
        return module.batches(), None
    package = sys.modules.get("models")
    if package is None:
        return [(torch.randn(rows, 6), torch.randn(rows, 8)) for rows in ROWS], None
    if hasattr(model, "example"):
        return [model.example(rows, torch.Generator().manual_seed(rows)) for rows in ROWS], package.loss
    return [package.tokens(rows) for rows in (8, 4)], package.loss


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()

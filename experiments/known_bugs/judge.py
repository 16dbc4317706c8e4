"""Judge known bugs: does dpexp find each, and name its module or its cause? And is the fixed one verified?

python experiments/known_bugs/judge.py                    # every bug that has no row with the installed versions
python experiments/known_bugs/judge.py nanogpt_30 --again
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:1] = [str(ROOT), str(HERE), str(ROOT / "experiments" / "public_layouts" / "layouts")]

from known import Bug

from experiments import harness
from experiments.harness import Row, markdown

FILES = ("loops", "pytorch_bugs", "transformers_bugs", "torchtitan_bugs")
SIDES = ("wrong", "fixed")
FOUND, VERIFIED = "found", "verified"
COLUMNS = ("link", "what", "run", "over", "verdict", "by", "module", "named", "error", "limit", "message")
LONGEST = 600
"""So much of a message is kept."""


def cases() -> Iterator[harness.Case]:
    """Both sides of every bug of the installed packages."""
    for file in FILES:
        try:
            found = {name: each for name, each in vars(import_module(file)).items() if isinstance(each, Bug)}
        except ImportError as error:
            print(f"{file}: left out: {error}", file=sys.stderr)
            continue
        for name, bug in found.items():
            packages = ("torch",) if bug.package == "pytorch" else ("torch", bug.package)
            for side in SIDES:
                run, row = partial(judge, bug, side == "wrong"), partial(row_of, bug)
                yield harness.Case(f"{name}/{side}", bug.ranks, packages, run, row)


def judge(bug: Bug, is_wrong: bool, home: Path) -> None:
    """Prove or watch one side of a bug as a rank, or alone, and write what was said."""
    import torch
    from torch import distributed

    import dpexp

    torch.set_num_threads(1)
    if bug.ranks:
        distributed.init_process_group("gloo")
    try:
        result = watched(bug, is_wrong) if bug.proof is None else proved(bug, is_wrong)
        said = {"verdict": VERIFIED, "message": "", **result}
    except dpexp.VerificationError as error:
        said = {"verdict": FOUND, "message": error.cause, "by": error.kind, "named": error.module}
    if not bug.ranks or distributed.get_rank() == 0:
        (home / "said").write_text(json.dumps(said), encoding="utf-8")


def proved(bug: Bug, is_wrong: bool) -> Row:
    """The errors of a layout. Raises VerificationError."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    import dpexp

    mesh = init_device_mesh("cpu", tuple(bug.sizes.values()), mesh_dim_names=tuple(bug.sizes))
    torch.manual_seed(0)
    model = bug.model()
    batches, loss = bug.proof(model)
    result = dpexp.prove(
        model, lambda model, mesh: bug.function(model, mesh, is_wrong), batches, loss, mesh=mesh
    )
    error = result.largest.error if result.largest else 0.0
    return {"error": f"{error:.2g}", "limit": f"{result.tolerance:.2g}"}


def watched(bug: Bug, is_wrong: bool) -> Row:
    """The end of a loop. Raises VerificationError."""
    bug.function(is_wrong).verdict()
    return {}


def row_of(bug: Bug, home: Path, ended: str) -> Row:
    """The row of one side."""
    written = home / "said"
    said = json.loads(written.read_text()) if written.exists() else {"verdict": "died", "message": ended}
    facts = {
        "link": bug.link,
        "what": bug.what,
        "run": bug.run,
        "over": bug.mesh or (f"{bug.ranks} ranks" if bug.ranks else "one process"),
        "module": bug.module,
        "by": "",
        "named": "",
    }
    return facts | said | {"message": harness.one_line(said["message"], LONGEST)}


# --- results.md ----------------------------------------------------------------------------------


def rendered(rows: Sequence[Row]) -> str:
    """results.md."""
    by_case = {row["case"]: row for row in rows}
    wrong = {name.rpartition("/")[0]: row for name, row in by_case.items() if name.endswith("/wrong")}
    pairs = {
        name: (row, by_case[f"{name}/fixed"]) for name, row in wrong.items() if f"{name}/fixed" in by_case
    }
    layouts = {name: pair for name, pair in pairs.items() if pair[0]["module"]}
    loops = {name: pair for name, pair in pairs.items() if name not in layouts}
    found = sum(row["verdict"] == FOUND for row, _ in pairs.values())
    named = sum(row["named"] == row["module"] for row, _ in layouts.values())
    verified = sum(fixed["verdict"] == VERIFIED for _, fixed in pairs.values())
    titles = ("bug", "what is wrong", "run")
    parts = [
        "# Verdicts",
        "Made from [results.csv](results.csv) by judge.py.",
        f"**Of {len(pairs)} known bugs, {len(layouts)} of layouts and {len(loops)} of loops, {found} are found; "
        f"of {named} of the layouts the right module is named. {verified} of {len(pairs)} are verified once fixed.**",
        "## Loops",
        markdown(
            (*titles, "what dpexp says", "fixed"), [_of_loop(name, *pair) for name, pair in loops.items()]
        ),
        "## Layouts",
        markdown(
            (*titles, "found by", "module", "named", "fixed"),
            [_of_layout(name, *pair) for name, pair in layouts.items()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _of_loop(name: str, wrong: Row, fixed: Row) -> tuple[str, ...]:
    said = wrong["message"].replace("|", "\\|") if wrong["verdict"] == FOUND else f"**{wrong['verdict']}**"
    return (*_common(name, wrong), said, _fixed(fixed))


def _of_layout(name: str, wrong: Row, fixed: Row) -> tuple[str, ...]:
    by = wrong["by"] if wrong["verdict"] == FOUND else f"**{wrong['verdict']}**"
    is_named = (
        "yes" if wrong["named"] == wrong["module"] else f"`{wrong['named']}`" if wrong["named"] else "no"
    )
    return (*_common(name, wrong), by, f"`{wrong['module']}`", is_named, _fixed(fixed))


def _common(name: str, row: Row) -> tuple[str, str, str]:
    link = f"[{row['link']}](https://github.com/{row['link']})"
    return f"{name}: {link}", row["what"], f"{row['run']}, {row['over']}"


def _fixed(row: Row) -> str:
    return ", ".join(filter(None, (row["verdict"], row["error"]))) if row["verdict"] == VERIFIED else "**no**"


if __name__ == "__main__":
    harness.main(HERE, COLUMNS, cases, rendered)

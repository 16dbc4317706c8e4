"""Judge layouts that public packages make: each with each of its models, as a run of dpexp.

python experiments/public_layouts/judge.py                   # every case that has no row with the installed versions
python experiments/public_layouts/judge.py torchtitan/tp --again
"""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parents[1]), str(HERE / "layouts")]  # not this folder

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.record.fold import load_record
from dpexp.record.record import Record
from experiments import harness
from experiments.public_layouts import results
from experiments.public_layouts.layouts.tried import Tried

PACKAGES = ("torchtitan", "transformers", "accelerate", "lightning", "pytorch", "torchgpipe")
RUN: dict[str, Any] = {
    "strategy": "custom",
    "data": "random:samples=9",
    "batch_size": 6,
    "steps": 1,
    "warmup": 0,
    "phase_steps": 0,
    "threads": 1,
    "devices": "cpu",
    "track": False,
    "experiment": "public_layouts",
}
"""What all runs have in common: batches of 6 and of 3 rows, which 2 and 4 ranks share unevenly."""

NOTHING = Tried((), "", {})
KEPT = ("python", "torch", "os", "cpu", "cpu_count")
LEFT_OUT: dict[str, Any] = {
    "device_map": [],
    "shapes": [],
    "timeline": [],
    "memory": {},
    "memory_use": [],
    "work": {},
    "origin": "",
}


def cases() -> Iterator[harness.Case]:
    """Each layout of each installed package with each of its models."""
    for package in PACKAGES:
        try:
            module = import_module(f"{package}_layouts")
        except ImportError as error:
            print(f"{package}: left out: {error}", file=sys.stderr)
            continue
        for layout, function in vars(module).items():
            for model in getattr(function, "tried", NOTHING).models:
                yield _case(package, layout, model, config(package, module, layout, model))


def config(package: str, module: Any, layout: str, model: str) -> RunConfig:
    """The run of a layout and a model, whose files are named from the root of the checkout."""
    tried = getattr(module, layout).tried
    named = {
        "mesh": tried.mesh,
        "run_name": f"{package}/{layout}/{model}",
        "model": module.MODEL.format(model),
        "layout": f"experiments/public_layouts/layouts/{package}_layouts.py:{layout}",
    }
    return RunConfig.from_dict(RUN | named | module.OPTIONS | tried.options)


def _case(package: str, layout: str, model: str, of_run: RunConfig) -> harness.Case:
    name = f"{package}/{layout}/{model}"

    def row(home: Path, ended: str) -> harness.Row:
        results.evidence(name).unlink(missing_ok=True)
        record = recorded(home)
        if record is None:
            refused = home / "refused"
            return results.row(name, False, refused.read_text() if refused.exists() else ended)
        found = results.of_record(name, record)
        if found["verdict"] == results.WRONG:
            _keep_evidence(name, record)
        return found

    packages = ("torch",) if package == "pytorch" else ("torch", package)
    return harness.Case(name, of_run.options.ranks, packages, lambda home: run(of_run, home), row)


def run(of_run: RunConfig, home: Path) -> None:
    """Run a case as one of its ranks."""
    from dpexp.run import execute

    os.environ["DPEXP_HOME"] = str(home)
    try:
        execute(of_run, quiet=True)
    except ConfigError as error:
        (home / "refused").write_text(str(error))


def recorded(home: Path) -> Record | None:
    """The Record of a run that came to its end."""
    written = list(home.glob("runs/*/record.json"))
    return load_record(written[0]) if written else None


def _keep_evidence(name: str, record: Record) -> None:
    """Keep the whole Record of a run that is wrong, but for what only measures or tells where it was."""
    environment = {key: record.environment.get(key) for key in KEPT}
    error = {key: value for key, value in (record.error or {}).items() if key != "traceback"}
    kept = record.to_dict() | LEFT_OUT | {"environment": environment, "error": error}
    path = results.evidence(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(harness.without_paths(Record.from_dict(kept).to_json()), encoding="utf-8")


if __name__ == "__main__":
    harness.main(HERE, results.COLUMNS, cases, results.rendered, results.problems)

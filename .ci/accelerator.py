"""The accelerator check: every strategy, ranks on NCCL, the ``gpu`` tests, the experiments, in this order.

``bash .ci/gpu OUT`` runs it. ``--virtual`` emulates the devices, to check the check itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import dpexp
from dpexp.config.errors import describe
from dpexp.config.run_config import RunConfig
from dpexp.record.record import Record
from dpexp.study.experiment.experiment import Experiment, load_experiment
from dpexp.study.sweep.sweep import Sweep, plan_runs

QUICK: dict[str, Any] = {"steps": 20, "warmup": 5, "phase_steps": 5, "track": False}
TESTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.gpu" in path.read_text()
)
EXPERIMENTS = ("whole_vs_block", "seed_tables", "batch_times_n", "equivalence")


class Check:
    """The check of one machine: ``results`` are lines of what ran, ``failed`` counts what went wrong."""

    def __init__(self, out: Path, virtual: bool, seconds: float) -> None:
        self.out, self.virtual, self.seconds, self.failed = out, virtual, seconds, 0
        self.started = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until the last step must have begun."""
        return self.seconds - (time.monotonic() - self.started)

    def limit(self, seconds: float) -> float:
        """Seconds that a step may take, which began in time: at most half a minute after the end."""
        return max(1.0, min(seconds, self.left + 30))

    def where(self, count: int) -> dict[str, Any]:
        """Options for so many devices: the first accelerator several times, or emulated ones."""
        return {"virtual": count} if self.virtual else {"devices": ",".join(["cuda:0"] * count)}

    def note(self, outcome: str, name: str, text: str = "") -> None:
        """Print one result, and keep it in OUT/results.txt."""
        self.failed += outcome == "FAILED"
        line = f"{time.monotonic() - self.started:5.0f} s  {outcome:7} {name:34} {text}".rstrip()
        print(line)
        with open(self.out / "results.txt", "a") as file:
            file.write(f"{line}\n")

    def attempt(self, name: str, run: Callable[[], str]) -> None:
        """Run one step, unless the time is over; whatever it raises is a failure of this step alone."""
        if self.left < 0:
            self.note("skipped", name, "no time left")
            return
        try:
            self.note("ok", name, run())
        except KeyboardInterrupt:
            self.note("FAILED", name, "cut: the time was over")
        except Exception as error:
            self.note("FAILED", name, describe(error).partition("\n")[0][:200])

    # --- the steps ---

    def strategies(self) -> None:
        """Every strategy of one process, on one device and on two; ``hybrid`` serial and pipelined."""
        layouts = f"{ROOT}/tests/helpers/layouts.py:replicated"
        cases: list[tuple[str, dict[str, Any]]] = [
            ("single", {}), ("whole", {}), ("whole", {"backend": "portable"}), ("block", {}),
            ("functional", {}), ("hybrid", {}), ("hybrid", {"sparse": True}),
            ("hybrid", {"sparse": True, "pipeline": True}),
            ("place", {"place": ["block2=cpu"]}), ("custom", {"layout": layouts}),
            ("whole", {"autocast": "bfloat16", "model": "cnn", "data": "digits"}),
        ]  # fmt: skip
        for strategy, options in cases:
            for count in (1,) if strategy == "single" else (1, 2):
                name = " ".join([strategy, *(key for key in options if key not in ("place", "layout"))])
                self.attempt(f"{name} x{count}", lambda s=strategy, o=options, n=count: self._run(s, o, n))

    def _run(self, strategy: str, options: dict[str, Any], count: int) -> str:
        return described(dpexp.run(strategy, quiet=True, **QUICK, **options, **self.where(count)))

    def ranks(self) -> None:
        """``ddp`` and ``fsdp`` as one rank, on NCCL where there is an accelerator."""
        where = ["--virtual", "1"] if self.virtual else ["--devices", "cuda:0", "--comm", "nccl"]
        for strategy in ("ddp", "fsdp"):
            words = [strategy, *where, "--steps", "20", "--warmup", "5", "--phase-steps", "5"]
            self.attempt(f"{strategy} as a rank", lambda words=words: self._command(words))

    def _command(self, words: list[str]) -> str:
        command = [sys.executable, "scripts/run.py", *words, "--no-track", "--json"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=self.limit(120), check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
        return described(Record.from_dict(json.loads(done.stdout)))

    def tests(self) -> None:
        """The tests that need an accelerator, without the plugins of the whole suite."""
        self.attempt("gpu tests", self._tests)

    def _tests(self) -> str:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-o",
            "addopts=",
            "-o",
            "timeout=0",
            "-q",
            "-ra",
            "-m",
            "gpu",
        ]
        with open(self.out / "tests.txt", "w") as log:
            done = subprocess.run(
                [*command, *TESTS], cwd=ROOT, stdout=log, stderr=log, timeout=self.limit(200), check=False
            )
        last = (self.out / "tests.txt").read_text().strip().rpartition("\n")[2]
        if done.returncode:
            raise RuntimeError(f"{last}: see {self.out / 'tests.txt'}")
        return last

    def experiments(self) -> None:
        """One round of each experiment whose cells fit one device, published to OUT/experiments."""
        for name in EXPERIMENTS:
            self.attempt(
                f"experiment {name}",
                lambda name=name: self._experiment(load_experiment(ROOT / "experiments" / name)),
            )

    def _experiment(self, experiment: Experiment) -> str:
        folder = self.out / "experiments" / experiment.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(experiment.folder / "config.py", folder)
        moved = dataclasses.replace(experiment, folder=folder, runs=dict(self._cells(experiment)), repeats=1)
        sweep, planned = Sweep.new(moved), plan_runs(moved)
        for run in planned:
            if self.left < 0:
                return (
                    f"only {len(list(sweep.records.glob('*.r1.json')))} of {len(planned)} cells: no time left"
                )
            sweep.run([run], lambda completed: None)
        return f"{len(planned)} cells in {sweep.publish().relative_to(self.out)}"

    def _cells(self, experiment: Experiment) -> Iterator[tuple[str, RunConfig]]:
        """Its runs on the accelerator: as many times the first as they emulate devices."""
        for cell, run in experiment.runs.items():
            assert isinstance(run, RunConfig)
            where = {"virtual": None, "devices": "auto"} | self.where(run.virtual or 1)
            yield cell, dataclasses.replace(run, **where)


def described(record: Record) -> str:
    """Execution, the largest error of the verification, and the time of a step."""
    found = record.verification or {}
    assert record.status == "finished", record.error
    assert found.get("passed"), found.get("note") or "not verified"
    step = record.summary["step_ms"]
    return f"{record.execution}, gradients {found['gradient_error']:.1e}, {step['median']:.3g} ms a step"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check dpexp on this machine's accelerator.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--virtual", action="store_true", help="emulate the devices")
    parser.add_argument("--only", default="strategies,ranks,tests,experiments")
    parser.add_argument("--seconds", type=float, default=500, help="begin nothing after so long")
    options = parser.parse_args()
    import torch

    if not options.virtual and not torch.cuda.is_available():
        sys.exit("error: no CUDA device: --virtual checks the check on emulated ones")
    check = Check(options.out, options.virtual, options.seconds)
    check.note(
        "begins",
        f"torch {torch.__version__}",
        "emulated" if options.virtual else torch.cuda.get_device_name(),
    )
    for part in options.only.split(","):
        getattr(check, part)()
    check.note("ends", f"{check.failed} failed")
    sys.exit(int(check.failed > 0))


if __name__ == "__main__":
    main()

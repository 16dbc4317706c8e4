"""What a Record says, measured from outside of dpexp.

By a clock inside the user's model, a stopwatch around the command, and what the kernel says of its memory.
"""

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from helpers.command_lines import script
from helpers.engine_runs import recorded
from torch import Tensor, nn

from dpexp import tensors
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare

STEPS, PHASE_STEPS = 5, 2


class Example(nn.Sequential):
    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(nn.Linear(3, 2), *modules)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 3, generator=generator), torch.randn(samples, 2, generator=generator)


class Clocked(Example):
    def __init__(self, log: str = "") -> None:
        super().__init__()
        self.log = log

    def forward(self, x: Tensor) -> Tensor:
        start = time.perf_counter_ns()
        outputs = super().forward(x)
        time.sleep(0.005)
        peak = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]
        with open(self.log, "a") as file:
            call = [start / 1e6, time.perf_counter_ns() / 1e6, len(x), int(peak) * 1024]
            file.write(json.dumps(call) + "\n")
        return outputs


def test_times_rates_and_memory_are_those_of_the_model_and_the_process(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    words = ["single", "--virtual", "1", "--no-track", "--json", "--model", f"{__file__}:Clocked:log={log}"]
    words += ["--data", "random:samples=20", "--batch-size", "10", "--steps", str(STEPS), "--warmup", "1"]
    before = time.perf_counter()
    done = script("run.py", *words, "--phase-steps", PHASE_STEPS)
    elapsed_ms = 1e3 * (time.perf_counter() - before)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["execution"] == "virtual"
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    # the warm-up, the measured steps, one in eval mode, four steps of two sides, phases, the profile
    warm_up, *calls = calls[-STEPS - 11 - PHASE_STEPS :]
    times = found["steps"]["time_ms"]
    assert found["steps"]["samples"] == [rows for _, _, rows, _ in calls[:STEPS]]
    inside = [end - start for start, end, *_ in calls[:STEPS]]
    # A step begins after the call of the step before, and ends before the call of the next.
    around = [
        after[0] - before[1] for before, after in zip([warm_up, *calls], calls[1 : STEPS + 1], strict=False)
    ]
    for ms, least, most in zip(times, inside, around, strict=True):
        assert least - 1e-5 <= ms <= most + 1e-5
    assert sum(times) <= calls[STEPS][0] - warm_up[1] + 1e-5  # no two overlap
    assert sum(times) < elapsed_ms
    rate = found["summary"]["samples_per_s"]
    assert 1e4 / statistics.median(around) * 0.999 <= rate <= 1e4 / statistics.median(inside) * 1.001
    # the kernel counts the resident set in batches of pages
    assert calls[0][3] * 0.99 <= found["memory"]["cpu"] <= calls[-1][3] * 1.01


class Buffered(Example):
    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(2), nn.Dropout(), nn.Linear(2, 2))


def test_every_parameter_and_buffer_and_outputs_in_eval_mode_are_digested(dpexp_home: Path) -> None:
    model, data = f"{__file__}:Buffered", {"data": "random:samples=8", "batch_size": 8}
    short: dict[str, Any] = {"eval": True, "steps": 1, "warmup": 0, "phase_steps": 0, "check": False}
    found = recorded(dpexp_home, RunConfig("single", model=model, devices="cpu", **data, **short))
    prepared = prepare(RunConfig("single", model=model, devices="cpu", **data))
    assert found.digest["weights"] == tensors.digest(prepared.model.state_dict())
    (batch,) = prepared.batches(0, shuffle=False)
    with torch.no_grad():
        outputs = prepared.model.eval()(*batch.inputs)
    assert found.digest["outputs"] == tensors.digest({"0": outputs})

"""One training loop under several ways of recording: ``python ways.py WAY STEPS`` prints a Record.

Linear(5, 2), 100 samples in batches of 30, SGD; the loss of every step is recorded, in a store of SQLite that
exists before the clock starts. A sample of ``time_ms`` is the mean over a stretch of the loop, recording
included, so it contains the time between steps.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import torch
from torch import nn

STRETCH = 10
"""Steps of one sample."""
ROUNDS, ROUND_FACTOR = 6, 30
"""Rounds of the recorded and the bare loop, and how many times ``STEPS`` steps each has. The journal is synced
to the disk at the end of a round, and every half second in it."""

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def samples_of_all() -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs (100, 5) and targets (100, 2)."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(100, 5, generator=rng), torch.randn(100, 2, generator=rng)


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of 30, 30, 30 and 10 of 100 samples, in a new order each epoch."""
    rng = torch.Generator().manual_seed(0)
    x, y = samples_of_all()
    done = 0
    while True:
        order = torch.randperm(100, generator=rng)
        for rows in order.split(30):
            if done == steps:
                return
            done += 1
            yield x[rows], y[rows]


class Linear(nn.Module):
    """The default model of dpexp."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(inputs)


def bare_trainer() -> Step:
    """One step: forward, loss, backward, optimizer."""
    torch.manual_seed(0)
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def timed(steps: int, recorded_step: Callable[[int, torch.Tensor, torch.Tensor], None]) -> list[float]:
    """Milliseconds per step, the mean of each stretch."""
    for number, (x, y) in enumerate(batches(10)):
        recorded_step(number, x, y)
    samples, start = [], time.perf_counter()
    for number, (x, y) in enumerate(batches(steps), start=1):
        recorded_step(number + 9, x, y)
        if number % STRETCH == 0:
            now = time.perf_counter()
            samples.append(1000 * (now - start) / STRETCH)
            start = now
    return samples


# --- the ways ------------------------------------------------------------------------------------


def bare(steps: int) -> list[float]:
    """Nothing is recorded."""
    step = bare_trainer()
    return timed(steps, lambda number, x, y: step(x, y) and None)


def recorded(steps: int) -> tuple[list[float], list[float]]:
    """dpexp's loop, with its journal, its timing and its progress bar on a terminal.

    Returns milliseconds per step, and their ratio to the bare loop's. The two alternate, so that other load on
    the machine slows both.
    """
    import dpexp
    from dpexp.engine.passes import Measurement

    open_terminal()
    steps *= ROUND_FACTOR
    bare_step, time_steps, samples, ratios = bare_trainer(), Measurement.time_steps, [], []

    def in_turn(measurement: Measurement) -> None:
        before = time.perf_counter()
        for x, y in batches(steps):
            bare_step(x, y)
        start = time.perf_counter()
        time_steps(measurement)
        end = time.perf_counter()
        samples.append(1000 * (end - start) / steps)
        ratios.append((end - start) / (start - before))

    Measurement.time_steps = in_turn
    with tempfile.TemporaryDirectory() as home:
        os.environ["DPEXP_HOME"] = home
        for _ in range(ROUNDS):
            dpexp.run(
                "single", devices="cpu", steps=steps, threads=1, phase_steps=0, check=False, track=False
            )
    return samples, ratios


def open_terminal() -> None:
    """Make stderr a terminal that a thread reads, so that the progress bar is drawn."""
    reader, terminal = pty.openpty()
    os.dup2(terminal, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)

    def read() -> None:
        while os.read(reader, 65536):
            pass

    threading.Thread(target=read, daemon=True).start()


def mlflow(steps: int) -> list[float]:
    """mlflow.log_metric each step."""
    import mlflow as library

    step = bare_trainer()

    def recorded_step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        library.log_metric("loss", step(x, y).item(), step=number)

    with store() as uri:
        library.set_tracking_uri(uri)
        library.set_experiment("overhead")
        with library.start_run():
            return timed(steps, recorded_step)


def accelerate(steps: int) -> list[float]:
    """Accelerate with its MLflow tracker."""
    from accelerate import Accelerator

    with store() as uri:
        os.environ["MLFLOW_TRACKING_URI"] = uri
        accelerator = Accelerator(cpu=True, log_with="mlflow")
        accelerator.init_trackers("overhead")
        torch.manual_seed(0)
        model = Linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)

        def recorded_step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()}, step=number)

        samples = timed(steps, recorded_step)
        accelerator.end_training()
    return samples


def lightning(steps: int) -> list[float]:
    """Lightning with its MLflow logger, logging each step."""
    import lightning as library
    from lightning.pytorch.loggers import MLFlowLogger

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Linear()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            self.log("loss", loss, on_step=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Clock(library.Callback):
        """The time of each stretch, from the end of one step to the end of another."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, *_: object) -> None:
            self.ends.append(time.perf_counter())

    data = torch.utils.data.TensorDataset(*samples_of_all())
    clock = Clock()
    with store() as uri, tempfile.TemporaryDirectory() as scratch:
        trainer = library.Trainer(
            max_steps=steps + 10, accelerator="cpu", logger=MLFlowLogger("overhead", tracking_uri=uri),
            callbacks=[clock], log_every_n_steps=1, enable_checkpointing=False, enable_model_summary=False,
            default_root_dir=scratch,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=30, shuffle=True))
    ends = clock.ends[9:]
    return [1000 * (b - a) / STRETCH for a, b in zip(ends[::STRETCH], ends[STRETCH::STRETCH], strict=False)]


@contextmanager
def store() -> Iterator[str]:
    """A new MLflow store of SQLite in a temporary folder; the value is its address."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, chdir(scratch):
        yield f"sqlite:///{scratch}/mlflow.db"


def whole_process_s(way: str, steps: int) -> float:
    """Seconds from the start to the exit of a process that runs only this way's loop."""
    code = f"import ways; ways.torch.set_num_threads(1); ways.WAYS[{way!r}]({steps})"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
    return time.perf_counter() - start


WAYS = {way.__name__: way for way in (bare, recorded, mlflow, accelerate, lightning)}


def single(steps: int) -> None:
    """A complete tracked run as a user starts it; prints its Record with the seconds of its process.

    A run before it makes the store.
    """
    options = ["--devices", "cpu", "--threads", "1", "--track-timeout", "60", "--json"]
    command = [sys.executable, str(ROOT / "scripts" / "run.py"), "single", *options]
    with tempfile.TemporaryDirectory() as home:
        environ = os.environ | {"DPEXP_HOME": home}
        subprocess.run([*command, "--steps", "1"], stdout=subprocess.DEVNULL, env=environ, check=True)
        start = time.perf_counter()
        done = subprocess.run(
            [*command, "--steps", str(steps)], stdout=subprocess.PIPE, env=environ, check=True
        )
        process_s = time.perf_counter() - start
    record = json.loads(done.stdout)
    record["metrics"]["process_s"] = [round(process_s, 3)]
    print(json.dumps(record))


def main(way: str, steps: int) -> None:
    """Run the loop and print its Record."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # the output of libraries goes to stderr
    torch.set_num_threads(1)
    result: Any = WAYS[way](steps)
    loop_s = time.time() - psutil.Process().create_time()
    process_s = whole_process_s(way, steps) if way == "bare" else loop_s
    time_ms, ratios = result if isinstance(result, tuple) else (result, [])

    from experiments.programs import program_record

    metrics = {"process_s": [round(process_s, 3)]} | ({"ratio": ratios} if ratios else {})
    record = program_record(way, time_ms, 30, metrics)
    os.write(stdout, record.to_json().encode())


if __name__ == "__main__":
    if sys.argv[1] == "single":
        single(int(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]))

"""The same training loop under several ways of recording: ``python ways.py WAY STEPS`` prints a Record.

Linear(5, 2), 100 samples in batches of 30, SGD; the loss of every step is recorded, in a store of SQLite
made before the clock starts. A sample of ``time_ms`` is the mean over a stretch of the loop, recording
included, so that what happens between steps counts too.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch
from torch import nn

STRETCH = 10
"""Steps of one sample."""
TURNS, TURNS_OF = 6, 30
"""Turns of the recorded and the bare loop, each of so many times ``STEPS`` steps: the journal is synced to the
disk at the end of each, and every half second in between."""

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of 30, 30, 30 and 10 of 100 samples, in a new order each epoch."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 5, generator=draw), torch.randn(100, 2, generator=draw)
    done = 0
    while True:
        order = torch.randperm(100, generator=draw)
        for rows in order.split(30):
            if done == steps:
                return
            done += 1
            yield x[rows], y[rows]


class Linear(nn.Module):
    """The default model, as dpexp has it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(inputs)


def trainer() -> Step:
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


def timed(steps: int, one: Callable[[int, torch.Tensor, torch.Tensor], None]) -> list[float]:
    """Milliseconds a step, the mean of each stretch."""
    for number, (x, y) in enumerate(batches(10)):
        one(number, x, y)
    found, start = [], time.perf_counter()
    for number, (x, y) in enumerate(batches(steps), start=1):
        one(number + 9, x, y)
        if number % STRETCH == 0:
            now = time.perf_counter()
            found.append(1000 * (now - start) / STRETCH)
            start = now
    return found


# --- the ways ------------------------------------------------------------------------------------


def bare(steps: int) -> list[float]:
    """Nothing is recorded."""
    step = trainer()
    return timed(steps, lambda number, x, y: step(x, y) and None)


def recorded(steps: int) -> tuple[list[float], list[float]]:
    """dpexp's own loop, with its journal, its timing and its progress bar at a terminal.

    Returns milliseconds a step, and their ratio to the bare loop's: the two take turns, so that whatever
    else the machine does meets both.
    """
    from dpexp.config import RunConfig
    from dpexp.distributed import SigtermHandler
    from dpexp.engine import loop
    from dpexp.engine.progress import Bar
    from dpexp.record import Journal
    from dpexp.timing import Timer

    a_terminal()
    steps *= TURNS_OF
    prepared = loop.prepare(RunConfig("single", devices="cpu", steps=steps, threads=1))
    bare_step, found, ratios = trainer(), [], []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Bar() as bar,
        Journal(Path(scratch) / "runs", "overhead") as journal,
    ):
        journal.set(loop.describe(prepared))
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, Timer(()))
        seen = loop.Observations(prepared, placed)
        for _ in range(TURNS):
            measured = loop.Trainer(
                prepared, placed, Timer(()), journal, bar, lambda: None, seen, SigtermHandler()
            )
            measured.warm_up()
            before = time.perf_counter()
            for x, y in batches(steps):
                bare_step(x, y)
            start = time.perf_counter()
            measured.time_steps()
            end = time.perf_counter()
            found.append(1000 * (end - start) / steps)
            ratios.append((end - start) / (start - before))
    return found, ratios


def a_terminal() -> None:
    """Make stderr a terminal that somebody reads, so that the progress bar is drawn."""
    ours, theirs = pty.openpty()
    os.dup2(theirs, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)

    def read() -> None:
        while os.read(ours, 65536):
            pass

    threading.Thread(target=read, daemon=True).start()


def mlflow(steps: int, *, synchronous: bool = True) -> list[float]:
    """mlflow.log_metric each step."""
    import mlflow as library

    step = trainer()

    def one(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        library.log_metric("loss", step(x, y).item(), step=number, synchronous=synchronous)

    with store() as uri:
        library.set_tracking_uri(uri)
        library.set_experiment("overhead")
        with library.start_run():
            found = timed(steps, one)
        library.flush_async_logging()
    return found


def mlflow_async(steps: int) -> list[float]:
    """The same, logged in the background."""
    return mlflow(steps, synchronous=False)


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

        def one(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()}, step=number)

        found = timed(steps, one)
        accelerator.end_training()
    return found


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

    draw = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(
        torch.randn(100, 5, generator=draw), torch.randn(100, 2, generator=draw)
    )
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


class store:
    """A new MLflow store of SQLite in a folder of its own; its address."""

    def __enter__(self) -> str:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        self.scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.chdir(self.scratch.name)
        return f"sqlite:///{self.scratch.name}/mlflow.db"

    def __exit__(self, *_: object) -> None:
        os.chdir("/")
        self.scratch.cleanup()


def whole_process_s(way: str, steps: int) -> float:
    """Seconds that a process takes, from its start to its exit, that does nothing but this way's loop."""
    code = f"import ways; ways.torch.set_num_threads(1); ways.WAYS[{way!r}]({steps})"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
    return time.perf_counter() - began


WAYS = {
    "bare": bare,
    "recorded": recorded,
    "mlflow": mlflow,
    "mlflow-async": mlflow_async,
    "accelerate": accelerate,
    "lightning": lightning,
}


def main(way: str, steps: int) -> None:
    """Run the loop and print its Record."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    torch.set_num_threads(1)
    result: Any = WAYS[way](steps)
    loop_s = time.time() - psutil.Process().create_time()
    process_s = whole_process_s(way, steps) if way == "bare" else loop_s
    time_ms, ratios = result if isinstance(result, tuple) else (result, [])

    from dpexp.engine.environment import environment
    from dpexp.record import Record, new_run_id, now

    record = Record(
        run_id=new_run_id(), name=way, strategy=way, execution="real", status="finished", started=now(),
        parent=os.environ.get("DPEXP_PARENT", ""), experiment=Path(__file__).parent.name,
    )  # fmt: skip
    record.ended = record.started
    record.environment = environment([], 1, torch.backends.cpu.get_cpu_capability())
    record.steps = {
        "time_ms": [round(each, 6) for each in time_ms],
        "loss": [None] * len(time_ms),
        "samples": [30] * len(time_ms),
    }
    record.metrics = {"process_s": [round(process_s, 3)]} | ({"ratio": ratios} if ratios else {})
    record.summarize()
    os.write(answer, record.to_json().encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

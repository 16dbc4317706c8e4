"""Trainer: the measured part of a run: warm up, time steps, take stock, time phases.

Nothing is inside a measured step but the step: moving the batch, forward, loss, backward, optimizer.
An accelerator keeps losses until the journal is written, at most once in ``FLUSH_SECONDS``, between steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any, Protocol

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.dataset import Batch, Dataset
from dpexp.distributed import SigtermHandler
from dpexp.engine.checkpoint import State
from dpexp.engine.diagnosis import first_not_finite
from dpexp.engine.observations import Observations
from dpexp.engine.prepare import Prepared, prepare
from dpexp.record import Journal
from dpexp.strategies import Placed
from dpexp.strategies.wrappers import Forward, named_parameters, parts
from dpexp.timing import Timer

FLUSH_SECONDS = 0.5
"""Longest time that measured steps wait in memory: what a SIGKILL can lose. Several ranks write, and look
whether one was asked to stop, after as many steps as the last ones say that this time holds."""

SETTLING = 2
"""Steps that a run takes before it goes on from a snapshot, at least."""

REPLAY_SECONDS = 60.0
"""A run that went wrong later than this is not trained anew to find the module that did it."""

PHASE_SECONDS = 5.0
"""The phase pass ends after ``--phase-steps``, or so many seconds and three steps."""


class RunError(RuntimeError):
    """The run cannot go on: what happened, in which step, and what to try."""


class Progress(Protocol):
    """Where the loop tells how far it is; ``steps`` since the last call, and the last loss if known."""

    def begin(self, stage: str, total: int | None = None) -> None: ...

    def advance(self, steps: int, step_ms: float, loss: float | None) -> None: ...


class Silent:
    """A Progress that nobody watches."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Nothing to show."""

    def advance(self, steps: int, step_ms: float, loss: float | None) -> None:
        """Nothing to show."""


@dataclass
class Trainer:
    """The measured part of a run: one placed model, trained on and on."""

    prepared: Prepared
    placed: Placed
    timer: Timer
    journal: Journal
    progress: Progress
    on_flush: Callable[[], None]
    observations: Observations
    stop: SigtermHandler
    _losses: list[Any] = field(default_factory=list)
    _times_ms: list[float] = field(default_factory=list)
    _rows: list[tuple[int, int]] = field(default_factory=list)
    _done: int = 0
    _started: float = 0.0
    _pace: int = 1
    _due: float = 0.0

    def __post_init__(self) -> None:
        config = self.prepared.config
        parameters = [each for each in self.placed.module.parameters() if each.requires_grad]
        self._parameters = parameters
        self._inputs_on_host = devices.physical(self.placed.input_device) == devices.HOST
        self._outputs_on_host = devices.physical(self.placed.output_device) == devices.HOST
        self._untimed = self.placed.module
        if isinstance(self._untimed, Forward):  # it does nothing but time its module
            self._untimed = self._untimed.module
        self._autocast = devices.autocast(self.placed.output_device, config.autocast)
        self._train = not config.eval and bool(parameters)
        self.placed.module.train(not config.eval)
        self._optimizer = torch.optim.SGD(parameters, lr=config.lr) if self._train else None
        devices.reset_peak_memory(self.placed.devices)

    # --- one step ---

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute one batch, and train on it unless ``--eval``. Returns the loss, on its device."""
        if self._optimizer is None:
            with torch.no_grad():
                return self._loss(self._outputs(batch, self._untimed), batch)
        loss = self._loss(self._outputs(batch, self._untimed), batch)
        self.placed.gradient_sync.backward(loss, batch)
        self._update(self._optimizer)
        return loss if self._outputs_on_host else loss.detach()

    def timed_step(self, batch: Batch) -> None:
        """The same step, phase by phase; the phases of a forward are timed by the layout's wrappers."""
        device, phase = self.placed.output_device, self.timer.phase
        with torch.set_grad_enabled(self._optimizer is not None):
            outputs = self._outputs(batch, self.placed.module)
            with phase("loss", device):
                loss = self._loss(outputs, batch)
        if self._optimizer is None:
            return
        with phase("backward", device):
            self.placed.gradient_sync.backward(loss, batch)
        with phase("optimizer", device):
            self._update(self._optimizer)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        for each in self._parameters:  # zero_grad does the same, and opens a profiler's span around it
            each.grad = None

    def _outputs(self, batch: Batch, module: nn.Module) -> Any:
        inputs = batch.inputs
        if not self._inputs_on_host:
            inputs = self._brought(inputs, self.placed.input_device)
        with self._autocast:
            return module(*inputs)

    def _loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        targets = batch.targets
        if not self._outputs_on_host:
            targets = self._brought(targets, self.placed.output_device)
        return self.prepared.data.loss(outputs, targets)

    def _brought(self, value: Any, device: torch.device) -> Any:
        with self.timer.phase("transfer", device):
            return devices.move(value, device)

    # --- the passes ---

    def warm_up(self) -> None:
        """Steps that are not measured: allocators, caches and autotuning settle."""
        self.progress.begin("warm up")
        for batch in islice(self._forever(), self.prepared.config.warmup):
            self.step(batch)

    def time_steps(self) -> None:
        """The measured steps: ``--epochs`` of the data or ``--steps``, each between idle devices."""
        config = self.prepared.config
        per_epoch = math.ceil(self.prepared.data.samples / config.batch_size)
        total = config.steps if config.epochs is None else config.epochs * per_epoch
        self.progress.begin("steps", total)
        self._started = time.perf_counter()
        self._due = self._started + FLUSH_SECONDS
        try:
            for epoch in range(self._done // per_epoch, math.ceil(total / per_epoch)):
                first = self._done + len(self._times_ms) - epoch * per_epoch
                left = total - epoch * per_epoch - first
                with self.stop.deferred() if self.prepared.snapshots is not None else nullcontext():
                    self._time(islice(self.prepared.local_batches(epoch, first=first), left))
                if config.epochs is not None:
                    self._log_accuracy()
            if config.epochs is None:
                self._log_accuracy()
            self._reach(False)
        except BaseException:
            self._keep()
            raise

    def _keep(self) -> None:
        """Steps that were not written when the run broke off; several ranks can no longer add theirs up."""
        if self.prepared.group.size == 1 and self._times_ms:
            done = min(len(self._times_ms), len(self._losses), len(self._rows))
            self._tell(self._times_ms[:done], [float(loss) for loss in self._losses[:done]])

    def _tell(self, times_ms: list[float], losses: list[float]) -> None:
        """These steps, the oldest that were not written, are the journal's to write."""
        self.journal.extend(
            {
                "steps.time_ms": [round(ms, 6) for ms in times_ms],
                "steps.loss": losses,
                "steps.samples": [of for _, of in self._rows[: len(losses)]],
            }
        )

    def _time(self, batches: Iterator[Batch]) -> None:
        clock, used = time.perf_counter, self.placed.devices
        waits = any(device.type != "cpu" for device in used)
        alone, every = self.prepared.group.size == 1, self.prepared.snapshot_every
        for batch in batches:
            if waits:
                devices.synchronize(used)
            start = clock()
            loss = self.step(batch)
            if waits:
                devices.synchronize(used)
            end = clock()
            self._times_ms.append((end - start) * 1e3)
            self._losses.append(loss.item() if self._outputs_on_host else loss)
            self._rows.append((batch.rows, batch.global_rows))
            at_snapshot = every is not None and (self._done + len(self._times_ms)) % every == 0
            is_due = end >= self._due or self.stop.requested if alone else len(self._times_ms) >= self._pace
            if at_snapshot or is_due:
                self._reach(at_snapshot)

    def _reach(self, at_snapshot: bool) -> None:
        """A step where all ranks meet. Raises Terminated, in all of them, where one was asked to stop."""
        stops, snapshots = self._write(), self.prepared.snapshots
        if snapshots is not None and (at_snapshot or stops):
            snapshots.save(self._done, self.state())
        if stops:
            self.stop.terminate()

    def _write(self) -> bool:
        """Put the measured steps into the journal, and say whether a rank was asked to stop.

        Raises RunError at a loss that is no number.
        """
        if not self._times_ms:
            return False
        losses, times_ms, stops = self._together()
        done, last_ms = len(losses), times_ms[-1]
        self._tell(times_ms, losses)
        self._losses, self._times_ms, self._rows = [], [], []
        self.journal.flush()
        self._due = time.perf_counter() + FLUSH_SECONDS
        self.on_flush()
        self.progress.advance(done, last_ms, losses[-1])
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise RunError(self._not_finite(self._done + index, loss))
        self._done += done
        return stops

    def _together(self) -> tuple[list[float], list[float], bool]:
        """(losses, times in ms, whether to stop) of the steps since the last call, the same on all ranks.

        A step lasts as long as its slowest rank's.
        """
        losses = self._losses if self._outputs_on_host else torch.stack(self._losses).double().tolist()
        if self.prepared.group.size == 1:
            return losses, self._times_ms, self.stop.requested
        weights = [rows / of if of else 1.0 for rows, of in self._rows]
        own = [loss * weight if weight else 0.0 for loss, weight in zip(losses, weights, strict=True)]
        steps = len(own)
        by_rank = self.prepared.group.all_gather_numbers([*own, *self._times_ms, float(self.stop.requested)])
        by_step = list(zip(*by_rank, strict=True))
        summed = [sum(parts) for parts in by_step[:steps]]
        times_ms = [max(times) for times in by_step[steps:-1]]
        usual_ms = sum(times_ms) / steps
        self._pace = max(1, min(1000, round(FLUSH_SECONDS * 1e3 / max(usual_ms, 1e-3))))
        return summed, times_ms, any(by_step[-1])

    # --- snapshots ---

    def state(self) -> State:
        """All that the next step depends on, of all ranks: what ``go_on`` takes."""
        gradient_sync, named = self.placed.gradient_sync, named_parameters(self.placed.module)
        held = self._optimizer.state if self._optimizer is not None else {}
        return {
            "step": self._done,
            "config": self.prepared.config.to_dict(),
            "parameters": {name: gradient_sync.full_tensor(name, each).cpu() for name, each in named.items()},
            "buffers": {name: each.detach().cpu() for name, each in self._buffers().items()},
            "optimizer": {
                name: {
                    key: (
                        gradient_sync.full_tensor(name, value) if value.shape == each.shape else value
                    ).cpu()
                    for key, value in held.get(each, {}).items()
                    if isinstance(value, torch.Tensor)
                }
                for name, each in named.items()
            },
            "random": self.prepared.group.all_gather(devices.rng_states(self.placed.devices)),
        }

    def resume(self) -> None:
        """Take the state of the newest snapshot, where there is one; what came after it is taken back.

        The warm-up before lets the wrappers settle: DDP orders its buckets anew after its first step, and
        with them the last bits of its sums.
        """
        if self.prepared.snapshots is None:
            return
        state = self.prepared.snapshots.newest()
        self._done = state["step"] if state is not None else 0
        per_epoch = math.ceil(self.prepared.data.samples / self.prepared.config.batch_size)
        steps = {f"steps.{key}": self._done for key in ("time_ms", "loss", "samples")}
        self.journal.cut(steps | {"metrics.accuracy": self._done // per_epoch})
        if state is not None:
            for batch in islice(self._forever(), max(0, SETTLING - self.prepared.config.warmup)):
                self.step(batch)
            self._take(state)

    def _take(self, state: State) -> None:
        gradient_sync = self.placed.gradient_sync
        for name, each in named_parameters(self.placed.module).items():
            gradient_sync.load_full_tensor(name, each, state["parameters"][name])
            for key, value in state["optimizer"][name].items():
                assert self._optimizer is not None
                is_like = value.shape == each.shape
                held = self._optimizer.state[each].setdefault(
                    key, torch.zeros_like(each) if is_like else torch.zeros_like(value)
                )
                gradient_sync.load_full_tensor(name, held, value) if is_like else held.copy_(value)
        for name, buffer in self._buffers().items():
            buffer.detach().copy_(state["buffers"][name])
        saved = state["random"]
        devices.set_rng_states(self.placed.devices, saved[self.prepared.group.rank % len(saved)])

    def _buffers(self) -> dict[str, torch.Tensor]:
        """The buffers by their names in the model as written."""
        return {
            f"{part.name}.{key}".lstrip("."): each
            for part in parts(self.placed.module)
            for key, each in part.module.named_buffers(recurse=False)
        }

    def _not_finite(self, step: int, loss: float) -> str:
        soon = time.perf_counter() - self._started < REPLAY_SECONDS
        module = self._module_of(step) if all(self.prepared.group.all_gather(soon)) else None
        made = "" if module is None else f"; the first to make it was {module}"
        smaller = f"try a smaller --lr than {self.prepared.config.lr:g}"
        return f"the loss became {loss} in step {step}{made}: {smaller}"

    def _module_of(self, step: int) -> str:
        """Train anew from the same seed up to that step, and watch it: the weights here are spoilt by now."""
        prepared, timer = prepare(self.prepared.config, group=self.prepared.group), Timer()
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
        anew = replace(self, prepared=prepared, placed=placed, timer=timer, progress=Silent())
        anew.warm_up()
        batches = self._forever()
        for batch in islice(batches, step):
            anew.step(batch)
        batch = next(batches)
        with first_not_finite(anew.placed.module) as found, torch.no_grad():
            anew._loss(anew._outputs(batch, anew.placed.module), batch)
        name = found()
        return "the loss" if name is None else f"module '{name}'" if name else "the model itself"

    def record_digests(self) -> None:
        """Digests of the trained weights and of their outputs, and peak memory."""
        module, batch = self.placed.module, next(self.prepared.batches(0, shuffle=False))
        training = module.training
        module.eval()
        with torch.no_grad():
            outputs = module(*self._brought(batch.inputs, self.placed.input_device))
        module.train(training)
        weights = {
            name: self.placed.gradient_sync.full_tensor(name, each)
            for name, each in named_parameters(module).items()
        }
        weights |= self._buffers()
        self.journal.set(
            digest={
                "weights": tensors.digest(weights),
                "outputs": tensors.digest(
                    {str(index): each for index, each in enumerate(tensors.walk(outputs))}
                ),
            },
            memory=self.observations.memory(),
        )
        self.journal.flush()
        self.on_flush()

    def time_phases(self) -> None:
        """A pass of its own, with a recording timer."""
        self.progress.begin("phases")
        group, started = self.prepared.group, time.perf_counter()
        for index, batch in enumerate(islice(self._forever(), self.prepared.config.phase_steps)):
            group.barrier()
            with self.timer.step():
                self.timed_step(batch)
            late = index >= 2 and time.perf_counter() - started > PHASE_SECONDS
            if any(group.all_gather(late)):
                break
        self.journal.set(phases=self.timer.phases, timeline=self.observations.timeline(self.timer.timeline))

    def _forever(self) -> Iterator[Batch]:
        return chain.from_iterable(self.prepared.local_batches(epoch) for epoch in count())

    def _log_accuracy(self) -> None:
        value = accuracy(self.placed, self.prepared.data.test, self.prepared.config.batch_size)
        if value is not None:
            self.journal.extend({"metrics.accuracy": [value]})


def accuracy(placed: Placed, test: Dataset | None, batch_size: int) -> float | None:
    """The part of the test rows whose class the placed model tells right; None where there are no classes."""
    if test is None:
        return None
    training = placed.module.training
    placed.module.eval()
    right = 0.0
    with torch.no_grad():
        for batch in test.batches(batch_size, seed=0, epoch=0, shuffle=False):
            outputs = placed.module(*devices.move(batch.inputs, placed.input_device))
            part = test.accuracy(outputs, devices.move(batch.targets, placed.output_device))
            if part is None:
                return None
            right += part * batch.rows
    placed.module.train(training)
    return right / test.samples

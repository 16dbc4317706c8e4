"""The loop: verify -> observe -> warm up -> time steps -> time phases.

``prepare`` does all that can refuse a run before it opens; ``execute`` runs it and tells a Journal
everything that it learns. Nothing is inside a measured step but the step: moving the batch, forward,
loss, backward, optimizer. Losses stay on the device until the journal is written, at most once in
``FLUSH_SECONDS``, between steps.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any, Protocol

import torch
from torch import nn

from dpexp import data, devices, models, nested
from dpexp.config import ConfigError, RankOptions, RunConfig, home
from dpexp.data import Batch, Dataset
from dpexp.diagnosis import changed_in_forward, first_not_finite
from dpexp.distributed import Stop, World, merge
from dpexp.distributed.group import Alone, join
from dpexp.distributed.select import select
from dpexp.distributed.snapshots import Snapshots, State, agreed_id, check_same
from dpexp.environment import environment
from dpexp.mistakes import told
from dpexp.observe import device_map, observe
from dpexp.record import Journal, Row, UnknownRunError, find, new_run_id, now
from dpexp.strategies import STRATEGIES, Placed, Strategy
from dpexp.strategies.wrapping import named_parameters, parts
from dpexp.timing import Timer
from dpexp.verify import NOT_CHECKED, VerificationError, digest, naming_the_module, verify

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
class Prepared:
    """A run that nothing speaks against: its model (on the host), data, strategy and devices."""

    config: RunConfig
    selection: devices.Selection
    strategy: Strategy
    model: nn.Module
    data: Dataset
    dtype: torch.dtype
    ranks: Alone = field(default_factory=Alone)
    note: str = ""
    run_id: str = ""
    goes_on: bool = False
    snapshots: Snapshots | None = None

    @property
    def snapshot_every(self) -> int | None:
        """Steps between snapshots; None where there are none but at a stop."""
        options = self.config.options
        return options.snapshot_every if isinstance(options, RankOptions) else None

    @property
    def execution(self) -> str:
        """``real``, ``virtual`` or ``passthrough``: what kind of run this is."""
        if self.selection.is_virtual:
            return "virtual"
        return "passthrough" if self.strategy.needs.devices and not self.selection.used else "real"

    @property
    def name(self) -> str:
        """The run's name: as given, or made of strategy, model and devices."""
        if self.config.run_name:
            return self.config.run_name
        used, count = self.selection.used, max(self.ranks.size, len(self.selection.used))
        where = "cpu" if not used else f"{count}x{used[0].type}" if count > 1 else devices.label(used[0])
        spec = models.parse(self.config.model)
        model = spec.name or spec.factory.rpartition(":")[2]
        return f"{self.config.strategy}-{model}-{where}"

    def batches(self, epoch: int, *, shuffle: bool = True, first: int = 0) -> Iterator[Batch]:
        """The global batches of one epoch in the seed's order, from batch ``first`` on."""
        return self.data.batches(
            self.config.batch_size, seed=self.config.seed, epoch=epoch, shuffle=shuffle, first=first
        )

    def own(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """This rank's part of each of them."""
        return self.data.batches(
            self.config.batch_size, seed=self.config.seed, epoch=epoch, first=first, share=self.ranks.rows
        )


def prepare(config: RunConfig, *, try_one_batch: bool = True, ranks: Alone | None = None) -> Prepared:
    """Everything that a run needs, made and checked. Raises ConfigError; nothing is written anywhere.

    ``try_one_batch`` runs the first batch through the model on the host, to see that the two fit.
    """
    ranks = ranks or Alone()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    selection = select(config, World.of())
    source = data.source(config.data, config.loss)
    torch.manual_seed(config.seed)
    model = models.build(config.model, source.features)
    dtype: torch.dtype = getattr(torch, config.dtype)
    dataset = source.dataset(model, config.seed).to(dtype)
    strategy = STRATEGIES[config.strategy](config, ranks)
    if config.compile and not strategy.needs.compile:
        able = ", ".join(name for name, each in STRATEGIES.items() if each.needs.compile)
        raise ConfigError(
            f"--compile: {config.strategy} makes its replicas anew at every step, and each would be compiled "
            f"anew; {able} compile once"
        )
    strategy.prepare(model, selection.used)
    _check_model(model, config)
    prepared = Prepared(config, selection, strategy, model.to(dtype), dataset, dtype, ranks)
    if try_one_batch:
        _try_one_batch(prepared)
    return prepared


def prepare_together(config: RunConfig, world: World | None) -> Prepared:
    """The same in every rank of the world; what speaks against it in one rank ends them all.

    Raises ConfigError, LostContact.
    """
    used = select(config, world).used
    options = config.options if isinstance(config.options, RankOptions) else None
    ranks = join(world, options, used[0] if used else devices.HOST)
    prepared, error, facts = None, None, {}
    try:
        prepared = prepare(config, ranks=ranks)
        facts = {
            "config": config.digest(),
            "data": prepared.data.digest if world else "",
            "model": str([(name, each.shape) for name, each in prepared.model.state_dict().items()]),
        }
    except Exception as raised:
        error = raised
    ranks.agree(error, facts)
    assert prepared is not None
    return _identified(prepared, options) if options is not None else prepared


def _identified(prepared: Prepared, options: RankOptions) -> Prepared:
    """The run with its id and its snapshots: ranks that were started anew go on with their own run."""
    ranks, config = prepared.ranks, prepared.config
    error, run_id = None, ""
    try:
        if options.resume and ranks.is_first:
            run_id = find(home() / "runs", options.resume).name
    except UnknownRunError as raised:
        error = ConfigError(f"--resume: {raised}")
    ranks.agree(error, {})
    run_id = ranks.from_rank(0, run_id) or (agreed_id(ranks, home()) if ranks.members else new_run_id())
    snapshots = Snapshots(home() / "snapshots" / run_id, ranks)
    begun = any(ranks.gather((home() / "runs" / run_id).exists()))
    if options.resume:
        state = snapshots.newest()
        if state is None:
            raise ConfigError(f"--resume {run_id}: no snapshot in {snapshots.folder} can be read")
        check_same(state["config"], config.to_dict(), run_id)
    return replace(prepared, run_id=run_id, goes_on=begun, snapshots=snapshots)


def _check_model(model: nn.Module, config: RunConfig) -> None:
    """ConfigError for a model that cannot be trained, or not be copied where verification must copy it."""
    parameters = list(model.parameters())
    if not config.eval and not any(parameter.requires_grad for parameter in parameters):
        found = (
            "has no parameters" if not parameters else f"has {len(parameters)} parameters, all of them frozen"
        )
        raise ConfigError(f"the model {found}: there is nothing to train; --eval runs it forward only")
    if config.check:
        try:
            copy.deepcopy(model)
        except Exception as error:
            raise ConfigError(
                f"the model cannot be copied ({type(error).__name__}: {error}), "
                "and verification compares copies: --no-check runs it without"
            ) from error


def _try_one_batch(prepared: Prepared) -> None:
    """The model on the host takes the first batch, and the loss its outputs: else ConfigError.

    Afterwards model and random state are as before; ``note`` tells what the forward changed of the model.
    """
    batch = next(prepared.batches(0))
    state = torch.get_rng_state()
    kept = {name: buffer.clone() for name, buffer in prepared.model.named_buffers()}
    follows = prepared.strategy.needs.gradients and not prepared.config.eval
    with (
        changed_in_forward(prepared.model) as changed,
        torch.set_grad_enabled(follows),
        devices.autocast(devices.HOST, prepared.config.autocast),
        naming_the_module(prepared.model),
    ):
        outputs = prepared.model(*batch.inputs)
    if changed():
        prepared.note = (
            f"the model changes {', '.join(changed())} in its forward: what replicas change is lost"
        )
    with torch.set_grad_enabled(follows):
        try:
            loss = prepared.data.loss(outputs, batch.targets)
        except ConfigError:
            raise
        except Exception as error:
            found = ", ".join(str(tuple(shape)) for shape in nested.shapes(outputs))
            wanted = ", ".join(str(tuple(shape)) for shape in nested.shapes(batch.targets))
            raise ConfigError(
                f"the loss does not take the model's outputs {found} with targets {wanted}: {told(error)}"
            ) from error
    if follows and loss.dim() == 0:
        _find_unused(prepared, loss)
    with torch.no_grad():
        for name, buffer in prepared.model.named_buffers():
            buffer.copy_(kept[name])
    torch.set_rng_state(state)
    if loss.dim() != 0:
        raise ConfigError(
            f"the loss must be a scalar, found shape {tuple(loss.shape)}: reduce it by mean over the rows"
        )


def _find_unused(prepared: Prepared, loss: torch.Tensor) -> None:
    """Tell the strategy which parameters the loss does not depend on."""
    named = {name: each for name, each in prepared.model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True) if loss.requires_grad else ()
    unused = [name for name, each in zip(named, found, strict=False) if each is None]
    if unused:
        prepared.strategy.unused(unused)


def describe(prepared: Prepared) -> Row:
    """The facts of a Record that are known before the run: what will run where."""
    config = prepared.config
    accelerators = [
        {
            "name": torch.cuda.get_device_name(device),
            "memory": torch.cuda.get_device_properties(device).total_memory,
        }
        for device in devices.accelerators()
        if device.type == "cuda"
    ]
    return {
        "name": prepared.name,
        "experiment": config.experiment,
        "strategy": config.strategy,
        "execution": prepared.execution,
        "status": "running",
        "started": now(),
        "config": config.to_dict(),
        "config_digest": config.digest(),
        "environment": environment(
            accelerators, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
        ),
        "data": {
            "name": prepared.data.name,
            "samples": prepared.data.samples,
            "description": prepared.data.description,
            "sha256": prepared.data.digest,
        },
    }


def devices_of(prepared: Prepared, placed: Placed) -> Row:
    """The ``devices`` of a Record: asked for, used, where outputs come; ``ranks`` where there are some."""
    found: Row = {
        "requested": list(prepared.selection.requested),
        "used": [devices.label(device) for device in placed.devices],
        "output": devices.label(placed.output_device),
    }
    ranks = prepared.ranks
    if ranks.members:
        names = rank_names(prepared)
        hosts = [name for name in found["used"] if name == "cpu"]
        found["used"] = hosts + names
        found["output"] = names[0]
        found["ranks"] = [
            {"rank": each.rank, "host": each.host, "device": name}
            for each, name in zip(ranks.members, names, strict=True)
        ]
    return found


def rank_names(prepared: Prepared) -> list[str]:
    """The device of every rank, by its name in the Record."""
    used = prepared.selection.used or (devices.HOST,)
    return merge.labels(prepared.ranks.gather(devices.label(used[0])), prepared.ranks.members)


def execute(
    prepared: Prepared,
    journal: Journal,
    progress: Progress,
    on_flush: Callable[[], None],
    stop: Stop | None = None,
) -> None:
    """Run it. Facts go to the journal as they are known; ``on_flush`` is called when there is more to read.

    It goes on from the newest of the run's snapshots, where there is one.
    Raises VerificationError, RunError, and whatever the model raises.
    """
    _verify(prepared, journal, progress)
    timer = Timer(tuple(device for device in prepared.selection.used))
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    seen = Seen(prepared, placed)
    journal.set(devices=devices_of(prepared, placed), device_map=seen.device_map())
    progress.begin("observe")
    journal.set(shapes=seen.shapes())
    journal.flush()
    on_flush()
    trial = Trial(prepared, placed, timer, journal, progress, on_flush, seen, stop or Stop())
    trial.warm_up()
    trial.go_on()
    trial.time_steps()
    trial.take_stock()
    trial.time_phases()
    journal.flush()


class Seen:
    """What is seen of a placed model, by all ranks together; alone, by this process."""

    def __init__(self, prepared: Prepared, placed: Placed) -> None:
        self._prepared = prepared
        self._placed = placed
        self._ranks = prepared.ranks
        self._names = rank_names(prepared) if prepared.ranks.members else []

    def device_map(self) -> list[Row]:
        """See ``observe.device_map``."""
        rows = device_map(self._placed)
        return merge.device_map(self._ranks.gather(rows), self._names) if self._names else rows

    def shapes(self) -> list[Row]:
        """See ``observe.observe``; a batch's rows are those of the ranks that have some of it."""
        counts: list[int] = []

        def inputs() -> Iterator[tuple[Any, ...]]:
            for batch in self._prepared.own(0):
                counts.append(batch.rows)
                yield batch.inputs

        rows = [row for row in observe(self._placed, inputs()) if counts[row["batch"]]]
        return merge.shapes(self._ranks.gather(rows), self._names) if self._names else rows

    def timeline(self, rows: list[Row]) -> list[Row]:
        """The timer's rows, from the start of each step."""
        return merge.timeline(self._ranks.gather(rows), self._names) if self._names else rows

    def memory(self) -> dict[str, int]:
        """Peak bytes by device."""
        peaks = devices.peak_memory(self._placed.devices)
        return merge.memory(self._ranks.gather(peaks), self._names) if self._names else peaks


def _verify(prepared: Prepared, journal: Journal, progress: Progress) -> None:
    config = prepared.config
    if not config.check:
        journal.set(verification=NOT_CHECKED.to_dict())
        return
    progress.begin("verify")
    batch = next(prepared.batches(0))
    result = verify(prepared.model, prepared.strategy, prepared.selection.used, prepared.data, batch)
    if prepared.note:
        result = replace(result, note="; ".join(filter(None, (result.note, prepared.note))))
    journal.set(verification=result.to_dict())
    if not result.passed:
        raise VerificationError(
            f"{config.strategy} does not compute what a single device computes: relative error of outputs "
            f"{result.output_error}, of gradients {result.gradient_error}, allowed {result.tolerance:g}"
            f"{f' ({result.note})' if result.note else ''}. --no-check runs it all the same"
        )


@dataclass
class Trial:
    """The measured part of a run: one placed model, trained on and on."""

    prepared: Prepared
    placed: Placed
    timer: Timer
    journal: Journal
    progress: Progress
    on_flush: Callable[[], None]
    seen: Seen
    stop: Stop
    _losses: list[torch.Tensor] = field(default_factory=list)
    _times_ms: list[float] = field(default_factory=list)
    _rows: list[tuple[int, int]] = field(default_factory=list)
    _done: int = 0
    _started: float = 0.0
    _pace: int = 1
    _due: float = 0.0

    def __post_init__(self) -> None:
        config = self.prepared.config
        parameters = [each for each in self.placed.module.parameters() if each.requires_grad]
        self._train = not config.eval and bool(parameters)
        self.placed.module.train(not config.eval)
        self._optimizer = torch.optim.SGD(parameters, lr=config.lr) if self._train else None
        devices.reset_peak_memory(self.placed.devices)

    # --- one step ---

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute one batch, and train on it unless ``--eval``. Returns the loss, detached, on its device."""
        if self._optimizer is None:
            with torch.no_grad():
                return self._forward(batch)
        loss = self._forward(batch)
        with self.timer.phase("backward", self.placed.output_device):
            self.placed.turn.backward(loss, batch)
        with self.timer.phase("optimizer", self.placed.output_device):
            self._optimizer.step()
            self._optimizer.zero_grad()
        return loss.detach()

    def _forward(self, batch: Batch) -> torch.Tensor:
        placed = self.placed
        with devices.autocast(placed.output_device, self.prepared.config.autocast):
            outputs = placed.module(*self._brought(batch.inputs, placed.input_device))
        with self.timer.phase("loss", placed.output_device):
            return self.prepared.data.loss(outputs, self._brought(batch.targets, placed.output_device))

    def _brought(self, value: Any, device: torch.device) -> Any:
        if devices.physical(device) == devices.HOST:
            return value
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
        for epoch in range(self._done // per_epoch, math.ceil(total / per_epoch)):
            first = self._done + len(self._times_ms) - epoch * per_epoch
            left = total - epoch * per_epoch - first
            with self.stop.held() if self.prepared.snapshots is not None else nullcontext():
                self._time(islice(self.prepared.own(epoch, first=first), left))
            if config.epochs is not None:
                self._log_accuracy()
        if config.epochs is None:
            self._log_accuracy()
        self._reach(False)

    def _time(self, batches: Iterator[Batch]) -> None:
        clock, used = time.perf_counter, self.placed.devices
        waits = any(device.type != "cpu" for device in used)
        alone, every = self.prepared.ranks.size == 1, self.prepared.snapshot_every
        for batch in batches:
            if waits:
                devices.synchronize(used)
            start = clock()
            loss = self.step(batch)
            if waits:
                devices.synchronize(used)
            end = clock()
            self._times_ms.append((end - start) * 1e3)
            self._losses.append(loss)
            self._rows.append((batch.rows, batch.of))
            at_snapshot = every is not None and (self._done + len(self._times_ms)) % every == 0
            is_due = end >= self._due or self.stop.asked if alone else len(self._times_ms) >= self._pace
            if at_snapshot or is_due:
                self._reach(at_snapshot)

    def _reach(self, at_snapshot: bool) -> None:
        """A step where all ranks meet. Raises Terminated, in all of them, where one was asked to stop."""
        stops, snapshots = self._write(), self.prepared.snapshots
        if snapshots is not None and (at_snapshot or stops):
            snapshots.save(self._done, self.state())
        if stops:
            self.stop.now()

    def _write(self) -> bool:
        """Put the measured steps into the journal, and say whether a rank was asked to stop.

        Raises RunError at a loss that is no number.
        """
        if not self._times_ms:
            return False
        losses, times_ms, stops = self._together()
        done, last_ms = len(losses), times_ms[-1]
        self.journal.extend(
            {
                "steps.time_ms": [round(ms, 6) for ms in times_ms],
                "steps.loss": losses,
                "steps.samples": [of for _, of in self._rows],
            }
        )
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
        weights = [rows / of if of else 1.0 for rows, of in self._rows]
        losses = torch.stack(self._losses).double().tolist()
        own = [loss * weight if weight else 0.0 for loss, weight in zip(losses, weights, strict=True)]
        by_rank = self.prepared.ranks.gather((own, self._times_ms, self.stop.asked))
        times_ms = [max(times) for times in zip(*(each[1] for each in by_rank), strict=True)]
        usual_ms = sum(times_ms) / len(times_ms)
        self._pace = max(1, min(1000, round(FLUSH_SECONDS * 1e3 / max(usual_ms, 1e-3))))
        summed = [sum(parts) for parts in zip(*(each[0] for each in by_rank), strict=True)]
        return summed, times_ms, any(each[2] for each in by_rank)

    # --- snapshots ---

    def state(self) -> State:
        """All that the next step depends on, of all ranks: what ``go_on`` takes."""
        turn, named = self.placed.turn, named_parameters(self.placed.module)
        held = self._optimizer.state if self._optimizer is not None else {}
        return {
            "step": self._done,
            "config": self.prepared.config.to_dict(),
            "parameters": {name: turn.whole(name, each).cpu() for name, each in named.items()},
            "buffers": {name: each.detach().cpu() for name, each in self._buffers().items()},
            "optimizer": {
                name: {
                    key: (turn.whole(name, value) if value.shape == each.shape else value).cpu()
                    for key, value in held.get(each, {}).items()
                    if isinstance(value, torch.Tensor)
                }
                for name, each in named.items()
            },
            "random": self.prepared.ranks.gather(devices.random_states(self.placed.devices)),
        }

    def go_on(self) -> None:
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
        turn = self.placed.turn
        for name, each in named_parameters(self.placed.module).items():
            turn.put(name, each, state["parameters"][name])
            for key, value in state["optimizer"][name].items():
                assert self._optimizer is not None
                is_like = value.shape == each.shape
                held = self._optimizer.state[each].setdefault(
                    key, torch.zeros_like(each) if is_like else torch.zeros_like(value)
                )
                turn.put(name, held, value) if is_like else held.copy_(value)
        for name, buffer in self._buffers().items():
            buffer.detach().copy_(state["buffers"][name])
        saved = state["random"]
        devices.set_random_states(self.placed.devices, saved[self.prepared.ranks.rank % len(saved)])

    def _buffers(self) -> dict[str, torch.Tensor]:
        """The buffers by their names in the model as written."""
        return {
            f"{part.name}.{key}".lstrip("."): each
            for part in parts(self.placed.module)
            for key, each in part.module.named_buffers(recurse=False)
        }

    def _not_finite(self, step: int, loss: float) -> str:
        soon = time.perf_counter() - self._started < REPLAY_SECONDS
        module = self._module_of(step) if all(self.prepared.ranks.gather(soon)) else None
        made = "" if module is None else f"; the first to make it was {module}"
        smaller = f"try a smaller --lr than {self.prepared.config.lr:g}"
        return f"the loss became {loss} in step {step}{made}: {smaller}"

    def _module_of(self, step: int) -> str:
        """Train anew from the same seed up to that step, and watch it: the weights here are spoilt by now."""
        anew = replace(
            self,
            prepared=prepare(self.prepared.config, ranks=self.prepared.ranks),
            timer=Timer(),
            progress=Silent(),
        )
        anew.placed = anew.prepared.strategy.place(
            anew.prepared.model, anew.prepared.selection.used, anew.timer
        )
        anew.__post_init__()
        anew.warm_up()
        batches = self._forever()
        for batch in islice(batches, step):
            anew.step(batch)
        with first_not_finite(anew.placed.module) as found, torch.no_grad():
            anew._forward(next(batches))
        name = found()
        return "the loss" if name is None else f"module '{name}'" if name else "the model itself"

    def take_stock(self) -> None:
        """Digests of the trained weights and of their outputs, and peak memory."""
        module, batch = self.placed.module, next(self.prepared.batches(0, shuffle=False))
        training = module.training
        module.eval()
        with torch.no_grad():
            outputs = module(*self._brought(batch.inputs, self.placed.input_device))
        module.train(training)
        weights = {
            name: self.placed.turn.whole(name, each) for name, each in named_parameters(module).items()
        }
        weights |= self._buffers()
        self.journal.set(
            digest={
                "weights": digest(weights),
                "outputs": digest({str(index): each for index, each in enumerate(nested.tensors(outputs))}),
            },
            memory=self.seen.memory(),
        )
        self.journal.flush()
        self.on_flush()

    def time_phases(self) -> None:
        """A pass of its own, with a recording timer."""
        self.progress.begin("phases")
        ranks, started = self.prepared.ranks, time.perf_counter()
        for index, batch in enumerate(islice(self._forever(), self.prepared.config.phase_steps)):
            ranks.barrier()
            with self.timer.step():
                self.step(batch)
            late = index >= 2 and time.perf_counter() - started > PHASE_SECONDS
            if any(ranks.gather(late)):
                break
        self.journal.set(phases=self.timer.phases, timeline=self.seen.timeline(self.timer.timeline))

    def _forever(self) -> Iterator[Batch]:
        return chain.from_iterable(self.prepared.own(epoch) for epoch in count())

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

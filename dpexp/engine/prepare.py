"""Prepare: build a run from its config and check it, before anything is written."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, count, islice

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import ConfigError, describe, plural
from dpexp.config.factories import Factory
from dpexp.config.process import cores
from dpexp.config.run_config import RunConfig
from dpexp.data import registry as data
from dpexp.data.base import Source
from dpexp.data.batch import Batch
from dpexp.data.dataset import Dataset
from dpexp.data.halves import no_mean_over_rows
from dpexp.data.rng import generator, kept_globals, seed_globals
from dpexp.distributed.devices import DeviceRequest, DeviceSelection
from dpexp.distributed.group import ProcessGroup
from dpexp.distributed.world import World
from dpexp.engine.model_check import (
    check_model,
    check_not_wrapped,
    check_rows_of_ranks,
    try_one_batch,
    turn_off_cache,
)
from dpexp.engine.references import factories
from dpexp.measurement.evaluation import Evaluation, Metrics, metrics_of
from dpexp.models import registry as models
from dpexp.strategies.base import Strategy
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks import check_sync_batch_norm
from dpexp.strategies.registry import STRATEGIES
from dpexp.training.optimizers import OptimizerChoice, check_optimizer
from dpexp.training.trainer import Trainer
from dpexp.verification.alone import alone
from dpexp.verification.model_copy import check_not_scripted
from dpexp.verification.touched_rows import with_touched_rows
from dpexp.verification.untouched import Untouched


@dataclass
class Prepared:
    """A run that can start: its model (on the host), data, strategy, devices and process group.

    ``factories`` has what the options name, by option (see ``references.factories``).
    ``untouched`` says what a user's layout has changed for every model.
    ``note`` is added to that of the verification; ``restarted`` is True if ``run_id`` has a journal.
    """

    config: RunConfig
    selection: DeviceSelection
    strategy: Strategy
    model: nn.Module
    data: Dataset
    factories: Mapping[str, Factory]
    group: ProcessGroup = field(default_factory=ProcessGroup)
    threads_before: int = 1
    note: str = ""
    run_id: str = ""
    restarted: bool = False
    untouched: Untouched | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)

    @cached_property
    def batch_rows(self) -> dict[int, int]:
        """{rows: how many global batches of an epoch have so many}, the full ones first."""
        return self.data.batch_rows(self.config.batch_size, self.config.seed)

    @property
    def batches_per_epoch(self) -> int:
        """How many global batches an epoch has, a smaller last one included."""
        return sum(self.batch_rows.values())

    @property
    def execution(self) -> str:
        """``real``, ``virtual`` or ``passthrough``: what kind of run this is; ``planned`` cannot run here."""
        if self.selection.is_virtual:
            return "virtual"
        if self.selection.missing:
            return "planned"
        return "passthrough" if self.strategy.needs.devices and not self.selection.used else "real"

    @property
    def may_mix_devices(self) -> bool:
        """Whether an operation may meet tensors of two devices, which emulated ones would not refuse.

        Models of dpexp in a layout as it is by default do not; a user's device map or model may.
        """
        needs, options = self.strategy.needs, self.strategy.options
        is_known = bool(self.factories["model"].name) and options == type(options)()
        return needs.prediction or (self.selection.is_virtual and not (is_known or needs.user_code))

    @property
    def optimizer(self) -> OptimizerChoice | None:
        """The optimizer of ``--optimizer``; None for a run that does not train."""
        return None if self.config.eval else _optimizer(self.config, self.factories["optimizer"])

    @property
    def name(self) -> str:
        """The run's name: ``--run-name``, or strategy, model and devices."""
        return self.name_on(max(self.group.size, len(self.selection.used)))

    def name_on(self, size: int) -> str:
        """The name on so many devices like the first."""
        if self.config.run_name:
            return self.config.run_name
        used = self.selection.used
        place = "cpu" if not used else f"{size}x{used[0].type}" if size > 1 else devices.label(used[0])
        model = self.factories["model"].name or self.factories["model"].attribute
        return f"{self.config.strategy}-{model}-{place}"

    def batches(self, epoch: int, *, first: int = 0, shuffle: bool = True) -> Iterator[Batch]:
        """The global batches of one epoch from number ``first`` on, in the order of the seed."""
        size, seed = self.config.batch_size, self.config.seed
        return self.data.batches(size, seed=seed, epoch=epoch, first=first, shuffle=shuffle)

    def local_batches(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """This rank's rows of the global batches of one epoch, from batch ``first`` on, and their weights.

        Every rank must take the same batches: a loss by tokens adds up the tokens of all.
        """
        size, seed, group = self.config.batch_size, self.config.seed, self.group
        for batch in self.data.batches(size, seed=seed, epoch=epoch, first=first, rank_rows=group.rows):
            yield self.data.objective.weighted(batch, group)

    def endless_batches(self, number: int = 0) -> Iterator[Batch]:
        """This rank's rows of epoch after epoch, from the batch with this number of all on."""
        return self._endless(self.local_batches, number)

    def endless_global_batches(self, number: int = 0) -> Iterator[Batch]:
        """The same batches with the rows of all ranks."""
        return self._endless(self.batches, number)

    def evaluated_batches(self) -> Iterator[Batch]:
        """All rows that are held out; without any, those of an epoch, or of the measured steps of a part."""
        if self.evaluation.held_out is not None:
            return self.evaluation.held_out.batches(self.config.batch_size, shuffle=False)
        steps = self.config.steps if self.config.epochs is None else self.batches_per_epoch
        return islice(self.batches(0, shuffle=False), min(steps, self.batches_per_epoch))

    def _endless(self, batches: Callable[..., Iterator[Batch]], number: int) -> Iterator[Batch]:
        epoch, first = divmod(number, self.batches_per_epoch)
        later = (batches(each) for each in count(epoch + 1))
        return chain(batches(epoch, first=first), chain.from_iterable(later))

    def trainer(self, placed: Placed) -> Trainer:
        """The trainer of the run's steps."""
        config = self.config
        placed.module.train(not config.eval)
        devices.reset_peak_memory(placed.devices)
        return Trainer(
            placed, self.data.objective.loss, self.optimizer, config.autocast, self.group, must_train=True
        )

    def release(self) -> None:
        """End the use of the model, and restore the process's number of torch threads for its next run."""
        del self.model  # sharded, it holds the process group
        torch.set_num_threads(self.threads_before)


def prepare(
    config: RunConfig, *, one_batch: bool = True, planned: bool = False, group: ProcessGroup | None = None
) -> Prepared:
    """Build and check everything that a run needs. Writes nothing. Raises ConfigError.

    ``one_batch`` also runs the first batch through the model on the host, to check that the two fit.
    ``planned`` admits accelerators that this machine does not have.
    """
    group, threads_before = group or ProcessGroup(), torch.get_num_threads()
    torch.set_num_threads(config.threads or _default_threads())
    torch.backends.cudnn.benchmark = False  # it chooses another kernel from run to run
    torch.backends.cudnn.deterministic = True
    selection = DeviceRequest(config.devices, config.virtual, config.options, planned).of_rank(World.of())
    found = factories(config)
    optimizer = _optimizer(config, found["optimizer"])
    seed_globals(config.seed)
    source = data.source(found["data"], found.get("loss"), config.reduction)
    seed_globals(config.seed)  # the weights do not depend on how much the data drew
    strategy = STRATEGIES[config.strategy](
        config.options, group, config.backend, config.compile, trains=not config.eval
    )
    model = models.build(found["model"], source.features)
    check_not_wrapped(model)
    check_not_scripted(model)
    cache_note = turn_off_cache(model)
    dtype: torch.dtype = getattr(torch, config.dtype)
    dataset = _dataset(config, source, model, found.get("validation")).to(dtype)
    evaluation = Evaluation(dataset.test, _metrics(found, model), bool(config.validation))
    _check_accumulation(config, dataset)
    _check_compile(config, strategy)
    untouched, untouched_note = _untouched(config, strategy, model, dataset, optimizer)
    strategy.prepare(model, selection.used)
    check_model(model, trains=not config.eval, copies=config.check)
    if not config.eval:
        check_sync_batch_norm(model, *(selection.used[:1] or [devices.HOST]))
        check_rows_of_ranks(model, dataset.batch_rows(config.batch_size, config.seed), group.dp_size)
        check_optimizer(optimizer, model)
    tensors.cast_module(model, dtype)
    prepared = Prepared(config, selection, strategy, model, dataset, found, group, threads_before)
    prepared.untouched, prepared.evaluation = untouched, evaluation
    if one_batch:
        first, trains = next(prepared.batches(0)), not config.eval
        first.check_rows(strategy.parts(selection.used))
        note = try_one_batch(
            model,
            dataset,
            first.copied(),
            strategy,
            selection.used,
            evaluation,
            trains=trains,
            autocast=config.autocast,
        )
        if config.accumulate > 1 and trains:
            _check_halves(config, model, dataset, first)
        notes = (source.note, dataset.note(config.batch_size), note, cache_note, untouched_note)
        prepared.note = "; ".join(filter(None, notes))
    return prepared


def _default_threads() -> int:
    """All cores but one, so that threads which wait for each other never wait for the delivery to MLflow."""
    usual = torch.get_num_threads()
    return usual if "OMP_NUM_THREADS" in os.environ else max(1, min(usual, cores() - 1))


def _dataset(config: RunConfig, source: Source, model: nn.Module, validation: Factory | None) -> Dataset:
    """The samples of the source for this model; those held out are of ``--validation``, if it is given.

    Raises ConfigError where those give no batch.
    """
    dataset = source.dataset(model, config.seed)
    if validation is not None:
        with kept_globals():  # of a seed of its own: a factory that draws rows must not draw the others again
            seed_globals(generator(config.seed, "validation").initial_seed())
            given = data.source(validation).dataset(model, config.seed)
        dataset = replace(dataset, test=given.test or given)
    if dataset.test is not None:
        dataset.test.batch_rows(config.batch_size, config.seed)
    return dataset


def _metrics(found: Mapping[str, Factory], model: nn.Module) -> Metrics | None:
    """Those of ``--metrics``, else the model's."""
    given = found.get("metrics")
    return metrics_of(model) if given is None else partial(given.load(), **given.options)


def _untouched(
    config: RunConfig, strategy: Strategy, model: nn.Module, data: Dataset, optimizer: OptimizerChoice
) -> tuple[Untouched | None, str]:
    """What a single device computes before a user's layout is called; None for other strategies.

    Nor where it computes nothing, of which there is a note: of a model that does not take the data, the batch
    that is tried next says why.
    """
    if not (config.check and strategy.needs.user_code):
        return None, ""
    batch = next(data.batches(config.batch_size, seed=config.seed, epoch=0))
    trains = None if config.eval else optimizer
    try:
        return Untouched(model, batch, data.objective, trains, getattr(torch, config.dtype)), ""
    except Exception as error:  # of any kind: it is the user's model
        return None, f"not seen: what the layout changes for every model, since it raises {describe(error)}"


def _optimizer(config: RunConfig, factory: Factory) -> OptimizerChoice:
    return OptimizerChoice(factory, config.lr, config.clip_norm, config.accumulate)


def _check_compile(config: RunConfig, strategy: Strategy) -> None:
    if config.compile and not strategy.needs.compile:
        able = ", ".join(name for name, other in STRATEGIES.items() if other.needs.compile)
        raise ConfigError(
            f"--compile: {config.strategy} makes new replicas in every step, and each would be compiled; "
            f"{able} compile once"
        )


def _check_halves(config: RunConfig, model: nn.Module, data: Dataset, batch: Batch) -> None:
    """Raises ConfigError for a loss whose batches do not add up."""
    model, _ = with_touched_rows(model, [batch])
    with alone():
        wrong = no_mean_over_rows(model, data.objective, batch)
    if wrong:
        raise ConfigError(
            f"--accumulate {config.accumulate} averages the gradients of batches, and {wrong}. "
            f"--batch-size {config.batch_size * config.accumulate} computes the rows together"
        )


def _check_accumulation(config: RunConfig, data: Dataset) -> None:
    """Raises ConfigError for a run that would make no update, and for a loss by tokens."""
    if config.accumulate == 1 or config.eval:
        return
    steps = config.steps
    if config.epochs is not None:
        steps = config.epochs * sum(data.batch_rows(config.batch_size, config.seed).values())
    if steps < config.accumulate:
        raise ConfigError(
            f"--accumulate {config.accumulate}: the run has {plural(steps, 'batch')}, so the optimizer would "
            f"never step: give --steps {config.accumulate} or more, or a smaller --accumulate"
        )
    if data.objective.reduction == "tokens":
        raise ConfigError(
            f"--accumulate {config.accumulate} counts batches alike, and the loss is a mean over tokens, of "
            "which each batch has another number: it would not be the mean over all of them; use "
            f"--batch-size {config.batch_size * config.accumulate} instead"
        )

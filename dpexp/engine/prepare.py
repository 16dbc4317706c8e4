"""Prepare: build a run from its config and check it, before anything is written."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import ConfigError
from dpexp.config.factories import Factory
from dpexp.config.features import Features
from dpexp.config.process import home
from dpexp.config.run_config import BATCH_SIZE, RunConfig
from dpexp.config.strategy_options import RankOptions
from dpexp.config.words import plural
from dpexp.data import registry as data
from dpexp.data.dataset import Dataset
from dpexp.data.rng import generator, kept_globals, seed_globals
from dpexp.data.sources import RandomSource, Source
from dpexp.data.stream import Stream
from dpexp.distributed.devices import DeviceRequest
from dpexp.distributed.group import ProcessGroup, RankError, init_process_group
from dpexp.distributed.world import World
from dpexp.engine.model_check import check_model, try_one_batch, turn_off_cache
from dpexp.engine.prepared import Prepared, Schedule
from dpexp.engine.references import factories
from dpexp.measurement.evaluation import Evaluation, metrics_of
from dpexp.models import registry as models
from dpexp.record.files import check_writable
from dpexp.strategies.registry import STRATEGIES
from dpexp.strategies.sync_batch_norm import check_sync_batch_norm
from dpexp.training.optimizers import OptimizerChoice, check_optimizer


def prepare(
    config: RunConfig,
    objects: Mapping[str, Any] | None = None,
    *,
    one_batch: bool = True,
    planned: bool = False,
    group: ProcessGroup | None = None,
    build: Callable[[Factory, Features | None], nn.Module] = models.build,
) -> Prepared:
    """Build and check everything that a run needs. Writes nothing. Raises ConfigError.

    ``objects`` are those that a program gave, by option. ``one_batch`` also tries a batch on the host.
    ``planned`` admits accelerators that are not here. ``build`` makes the model. It seeds random numbers: see
    ``run_globals``.
    """
    request = DeviceRequest(config.devices, config.virtual, config.options, planned)
    selection, named = request.of_rank(World.of()), factories(config, objects)
    choice = OptimizerChoice(named["optimizer"], config.lr, config.clip_norm, config.accumulate)
    strategy = STRATEGIES[config.strategy](
        config.options,
        group or ProcessGroup(),
        config.backend,
        trains=not config.eval,
        checkpoint=config.checkpoint,
    )
    seed_globals(config.seed)
    source = data.source(named["data"], named.get("loss"), config.reduction)
    seed_globals(config.seed)  # the weights do not depend on how much the data drew
    model = build(named["model"], source.features)
    cache_note = turn_off_cache(model)
    dataset = _dataset(config, source, model, named.get("validation"))
    batch_size = _batch_size(config, dataset)
    given = named.get("metrics")
    metrics = metrics_of(model) if given is None else given.bound(given.load(), 2)
    prepared = Prepared(
        strategy=strategy,
        request=request,
        selection=selection,
        model=model,
        data=dataset,
        batch_size=batch_size,
        seed=config.seed,
        optimizer=None if config.eval else choice,
        dtype=getattr(torch, config.dtype),
        autocast=config.autocast,
        schedule=_schedule(config, dataset, batch_size),
        evaluation=Evaluation(dataset.test, metrics, bool(config.validation)),
        factories=named,
        run_name=config.run_name,
    )
    _check(prepared)
    tensors.cast_module(model, prepared.dtype)
    objective = try_one_batch(prepared) if one_batch else dataset.objective
    notes = dataset.note, objective.note, _unused_size(config.batch_size, batch_size), cache_note
    return replace(prepared, data=replace(dataset, objective=objective), note="; ".join(filter(None, notes)))


def prepare_ranks(config: RunConfig, objects: Mapping[str, Any] | None, world: World | None) -> Prepared:
    """``prepare`` in every rank of the world, or here without one; an error in one rank ends all of them.

    Raises ConfigError, LostContact; JournalError in the first rank, which cannot record.
    """
    used = DeviceRequest(config.devices, config.virtual, config.options).of_rank(world).used
    options = config.options if isinstance(config.options, RankOptions) else None
    group = init_process_group(world, options, used[0] if used else devices.HOST)
    error: BaseException
    try:
        prepared, facts = group.together(lambda: _prepared(config, objects, world, group))
        group.check_alike(facts)
        return prepared
    except RankError as failed:
        error = failed.__cause__ or ConfigError(f"{group.members[failed.rank]}: {failed.kind}: {failed.text}")
    except ConfigError as differs:
        error = differs
    with suppress(RuntimeError):  # a rank was killed meanwhile
        group.destroy()
    raise error


def _prepared(
    config: RunConfig, objects: Mapping[str, Any] | None, world: World | None, group: ProcessGroup
) -> tuple[Prepared, dict[str, str]]:
    """What this rank builds, and what must be the same on every rank."""
    prepared = prepare(config, objects, group=group)
    facts = {
        "config": config.digest(),
        "data": prepared.data.digest if world else "",
        "model": str([(name, tensor.shape) for name, tensor in prepared.model.state_dict().items()]),
    }
    if group.is_first:
        check_writable(home() / "runs")
    return prepared, facts


def _batch_size(config: RunConfig, dataset: Dataset) -> int:
    """The most rows of a batch: ``--batch-size``, unless the data has batches of its own.

    The default is all samples of data that has fewer. Raises ConfigError for more rows than samples.
    """
    wanted, epochs = config.batch_size, dataset.epochs
    if isinstance(epochs, Stream):
        return max(epochs.rows(wanted))
    if wanted <= epochs.samples or wanted == BATCH_SIZE:
        return min(wanted, epochs.samples)
    is_random = config.data.partition(":")[0] == RandomSource.name
    more = f"give --data {RandomSource.name}:samples={wanted}" if is_random else "give more data"
    raise ConfigError(
        f"--batch-size {wanted} is larger than the data, which has {plural(epochs.samples, 'sample')}: "
        f"{more}, or a --batch-size of at most {epochs.samples}"
    )


def _unused_size(wanted: int, batch_size: int) -> str:
    if wanted in (BATCH_SIZE, batch_size):
        return ""
    return f"batches are those of the data, of {plural(batch_size, 'row')}: --batch-size is not used"


def _schedule(config: RunConfig, dataset: Dataset, batch_size: int) -> Schedule:
    """The warm-up ends with a window of accumulation: a layout may count its batches to know the last."""
    steps, epochs, accumulate = config.steps, config.epochs, config.accumulate
    if epochs is not None:
        steps = epochs * sum(dataset.epochs.rows(batch_size).values())
    warmup = math.ceil(config.warmup / accumulate) * accumulate
    return Schedule(steps, epochs is not None, warmup, config.phase_steps, config.check, config.profile)


def _dataset(config: RunConfig, source: Source, model: nn.Module, validation: Factory | None) -> Dataset:
    dataset = source.dataset(model, config.seed)
    if validation is not None:
        with kept_globals():  # of a seed of its own: a factory that draws rows must not draw the others again
            seed_globals(generator(config.seed, "validation").initial_seed())
            given = data.source(validation).dataset(model, config.seed)
        dataset = replace(dataset, test=given.test or given)
    return dataset.to(getattr(torch, config.dtype))


def _check(prepared: Prepared) -> None:
    """Raises ConfigError where model, layout, devices and optimizer do not fit."""
    model, used, optimizer = prepared.model, prepared.selection.used, prepared.optimizer
    _check_accumulation(prepared)
    prepared.strategy.prepare(model, used)
    check_model(model, trains=prepared.strategy.trains, copies=prepared.schedule.check)
    if optimizer is not None:
        check_sync_batch_norm(model, *(used[:1] or [devices.HOST]))
        check_optimizer(optimizer, model)


def _check_accumulation(prepared: Prepared) -> None:
    """Raises ConfigError for a run that would make no update, and for a loss by tokens."""
    accumulate = prepared.accumulate
    if prepared.schedule.steps < accumulate:
        raise ConfigError(
            f"--accumulate {accumulate}: the run has {plural(prepared.schedule.steps, 'batch')}, so the "
            f"optimizer would never step: give --steps {accumulate} or more, or a smaller --accumulate"
        )
    if accumulate > 1 and prepared.data.objective.reduction == "tokens":
        raise ConfigError(
            f"--accumulate {accumulate} counts batches alike, and the loss is a mean over tokens, of "
            "which each batch has another number: it would not be the mean over all of them; use "
            f"--batch-size {prepared.batch_size * accumulate} instead"
        )

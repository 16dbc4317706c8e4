"""Prepare: everything that can refuse a run before it opens, and the run that nothing speaks against."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from dpexp import data, devices, models, tensors
from dpexp.config import ConfigError, RankOptions, RunConfig, home
from dpexp.config.user_errors import describe
from dpexp.data.dataset import Batch, Dataset
from dpexp.distributed import World
from dpexp.distributed.device_assignment import select
from dpexp.distributed.process_group import ProcessGroup, init_process_group
from dpexp.engine.checkpoint import Snapshots, agreed_run_id, check_same
from dpexp.engine.diagnosis import changed_in_forward
from dpexp.engine.verify import naming_the_module
from dpexp.record import UnknownRunError, find, new_run_id
from dpexp.strategies import STRATEGIES, Strategy


@dataclass
class Prepared:
    """A run that nothing speaks against: its model (on the host), data, strategy and devices.

    ``threads_before`` are torch's threads as the process had them: ``release`` gives them back.
    """

    config: RunConfig
    selection: devices.Selection
    strategy: Strategy
    model: nn.Module
    data: Dataset
    dtype: torch.dtype
    group: ProcessGroup = field(default_factory=ProcessGroup)
    note: str = ""
    run_id: str = ""
    resumes: bool = False
    snapshots: Snapshots | None = None
    threads_before: int = 1

    @property
    def snapshot_every(self) -> int | None:
        """Steps between snapshots; None where there are none but at a stop."""
        options = self.config.options
        return options.snapshot_every if isinstance(options, RankOptions) else None

    def release(self) -> None:
        """The run is over: the next one in this process finds torch's threads as this one did."""
        torch.set_num_threads(self.threads_before)

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
        used, count = self.selection.used, max(self.group.size, len(self.selection.used))
        where = "cpu" if not used else f"{count}x{used[0].type}" if count > 1 else devices.label(used[0])
        spec = models.parse(self.config.model)
        model = spec.name or spec.factory.rpartition(":")[2]
        return f"{self.config.strategy}-{model}-{where}"

    def batches(self, epoch: int, *, shuffle: bool = True, first: int = 0) -> Iterator[Batch]:
        """The global batches of one epoch in the seed's order, from batch ``first`` on."""
        return self.data.batches(
            self.config.batch_size, seed=self.config.seed, epoch=epoch, shuffle=shuffle, first=first
        )

    def local_batches(self, epoch: int, *, first: int = 0) -> Iterator[Batch]:
        """This rank's part of each of them."""
        return self.data.batches(
            self.config.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            first=first,
            rank_rows=self.group.rows,
        )


def prepare(config: RunConfig, *, try_one_batch: bool = True, group: ProcessGroup | None = None) -> Prepared:
    """Everything that a run needs, made and checked. Raises ConfigError; nothing is written anywhere.

    ``try_one_batch`` runs the first batch through the model on the host, to see that the two fit.
    """
    ranks, threads_before = group or ProcessGroup(), torch.get_num_threads()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.backends.cudnn.benchmark = False  # which picks another kernel from run to run
    torch.backends.cudnn.deterministic = True
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
    tensors.cast_module(model, dtype)
    prepared = Prepared(config, selection, strategy, model, dataset, dtype, ranks)
    prepared.threads_before = threads_before
    if try_one_batch:
        _try_one_batch(prepared)
    return prepared


def prepare_together(config: RunConfig, world: World | None) -> Prepared:
    """The same in every rank of the world; what speaks against it in one rank ends them all.

    Raises ConfigError, LostContact.
    """
    used = select(config, world).used
    options = config.options if isinstance(config.options, RankOptions) else None
    group = init_process_group(world, options, used[0] if used else devices.HOST)
    prepared, error, facts = None, None, {}
    try:
        prepared = prepare(config, group=group)
        facts = {
            "config": config.digest(),
            "data": prepared.data.digest if world else "",
            "model": str([(name, each.shape) for name, each in prepared.model.state_dict().items()]),
        }
    except Exception as raised:
        error = raised
    group.check_agreement(error, facts)
    assert prepared is not None
    return _identified(prepared, options) if options is not None else prepared


def _identified(prepared: Prepared, options: RankOptions) -> Prepared:
    """The run with its id and its snapshots: ranks that were started anew go on with their own run."""
    group, config = prepared.group, prepared.config
    error, run_id = None, ""
    try:
        if options.resume and group.is_first:
            run_id = find(home() / "runs", options.resume).name
    except UnknownRunError as raised:
        error = ConfigError(f"--resume: {raised}")
    group.check_agreement(error, {})
    run_id = group.broadcast(0, run_id) or (agreed_run_id(group, home()) if group.members else new_run_id())
    snapshots = Snapshots(home() / "snapshots" / run_id, group)
    begun = any(group.all_gather((home() / "runs" / run_id).exists()))
    if options.resume:
        state = snapshots.newest()
        if state is None:
            raise ConfigError(f"--resume {run_id}: no snapshot in {snapshots.folder} can be read")
        check_same(state["config"], config.to_dict(), run_id)
    return replace(prepared, run_id=run_id, resumes=begun, snapshots=snapshots)


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
            found = ", ".join(str(tuple(shape)) for shape in tensors.shapes(outputs))
            wanted = ", ".join(str(tuple(shape)) for shape in tensors.shapes(batch.targets))
            raise ConfigError(
                f"the loss does not take the model's outputs {found} with targets {wanted}: {describe(error)}"
            ) from error
    if follows and loss.dim() == 0:
        _find_unused(prepared, loss)
    with torch.no_grad():
        for name, buffer in prepared.model.named_buffers():
            if name in kept and kept[name].shape == buffer.shape:  # a lazy cache is new, or has grown
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

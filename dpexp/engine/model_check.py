"""Model check: whether model, data and loss fit each other, before a run opens.

``check_model`` looks at the model alone, ``try_one_batch`` runs it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import ConfigError, describe
from dpexp.config.words import listed, plural
from dpexp.copies import check_copyable
from dpexp.data.objective import Objective
from dpexp.engine.prepared import Prepared
from dpexp.parallel.random_layers import mark_drawing
from dpexp.strategies.module_calls import running_calls
from dpexp.strategies.sync_batch_norm import without_ranks
from dpexp.training.preserve import preserved
from dpexp.verification.mode import drawing_modules


def check_model(model: nn.Module, *, trains: bool, copies: bool) -> None:
    """Raises ConfigError for a model that lays itself out, or cannot be trained or copied."""
    _check_no_data_parallel(model)
    parameters = list(model.parameters())
    if trains and not any(parameter.requires_grad for parameter in parameters):
        found = (
            f"{plural(len(parameters), 'parameter')}, all of them frozen" if parameters else "no parameters"
        )
        raise ConfigError(f"the model has {found}: there is nothing to train; --eval runs it forward only")
    if copies:
        try:
            check_copyable(model)
        except ConfigError as error:
            raise ConfigError(f"{error}; --no-check runs it without verification, which copies it") from error


def _check_no_data_parallel(model: nn.Module) -> None:
    found = [name for name, module in model.named_modules() if isinstance(module, nn.DataParallel)]
    if found:
        names = listed([name or "the model" for name in found])
        raise ConfigError(
            f"{names} in nn.DataParallel chooses its own devices: give the module inside it to whole, or "
            "name it with --block, which takes it out"
        )


def turn_off_cache(model: nn.Module) -> str:
    """Set ``use_cache`` in the config of a decoder of Hugging Face to False; returns a note if it was True.

    The keys and values of earlier tokens are for generation. In training they are one more output, an object
    that replicas cannot join and that layers on different devices share.
    """
    configs = [getattr(module, "config", None) for module in model.modules()]
    found = [config for config in configs if getattr(config, "use_cache", False) is True]
    for config in found:
        config.use_cache = False  # type: ignore[union-attr]
    return "the model's config.use_cache is turned off: its cache is for generation" if found else ""


def try_one_batch(prepared: Prepared) -> Objective:
    """Run the first batch through model, loss and metrics on the host, and restore what that changes.

    Modules that draw random numbers are marked: replicas that share a generator compute them in order.
    Returns the objective, which then knows what the forward returns. Raises ConfigError.
    """
    model, strategy = prepared.model, prepared.strategy
    first = next(prepared.batches(0))
    strategy.check_rows(first, prepared.selection.used)
    batch = first.copied()
    with (
        preserved(model),
        without_ranks(model),
        torch.set_grad_enabled(strategy.trains),
    ):
        with (
            devices.autocast(devices.HOST, prepared.autocast),
            misfit_as_config_error(model),
            drawing_modules(model) as draws,
        ):
            outputs = model(*batch.inputs)
        strategy.check_outputs(outputs, first, prepared.selection.used)
        with devices.autocast(devices.HOST, prepared.autocast):
            objective = _probed(prepared.data.objective, outputs, batch.targets)
        prepared.evaluation.try_metrics(outputs, batch.targets)
    mark_drawing(model, draws.names)
    return objective


def _probed(objective: Objective, outputs: Any, targets: Any) -> Objective:
    try:
        return objective.probed(outputs, targets)[0]
    except ConfigError:
        raise
    except Exception as error:
        shapes = [", ".join(str(tuple(shape)) for shape in tensors.shapes(v)) for v in (outputs, targets)]
        raise ConfigError(
            f"the loss does not take the model's outputs {shapes[0]} with targets {shapes[1]}: "
            f"{describe(error)}"
        ) from error


@contextmanager
def misfit_as_config_error(model: nn.Module) -> Iterator[None]:
    """An exception inside the model's forward becomes a ConfigError that names the innermost module."""
    with running_calls(model) as running:
        try:
            yield
        except Exception as error:
            if isinstance(error, ConfigError) or not running:
                raise
            call, inputs = running[-1], list(tensors.walk(running[-1].inputs))
            where = f"module '{call.name}'" if call.name else "the model"
            definition = "" if list(call.module.children()) else f" ({call.module})"
            shown = [f"{tuple(each.shape)} {str(each.dtype).removeprefix('torch.')}" for each in inputs]
            got = ", ".join(shown) or "no tensor"
            text = f"the model does not fit the data: {where}{definition} got {got}: {describe(error)}"
            raise ConfigError(text) from error

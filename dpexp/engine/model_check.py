"""Model check: whether model, data and loss fit each other, before a run opens.

``check_model`` looks at the model alone, ``try_one_batch`` runs it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import ConfigError, describe, listed, plural
from dpexp.data.batch import Batch
from dpexp.data.dataset import Dataset
from dpexp.measurement.evaluation import Evaluation
from dpexp.parallel import chunk_sizes
from dpexp.parallel.random_layers import mark_drawing
from dpexp.strategies.base import Strategy
from dpexp.strategies.ranks import synchronized, without_ranks
from dpexp.training.preserve import preserved
from dpexp.verification.mode import drawing_modules
from dpexp.verification.model_copy import check_copyable


def check_not_wrapped(model: nn.Module) -> None:
    """Raises ConfigError for an ``nn.DataParallel``, which would choose its own devices."""
    if isinstance(model, nn.DataParallel):
        raise ConfigError(
            "the model is an nn.DataParallel, which chooses its own devices: give the module inside it, and "
            "whole puts it in DataParallel"
        )


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
        except Exception as error:
            raise ConfigError(
                f"the model cannot be copied ({describe(error)}), "
                "and verification compares copies: --no-check runs it without"
            ) from error


def _check_no_data_parallel(model: nn.Module) -> None:
    """Raises ConfigError for a model with an ``nn.DataParallel`` that ``block`` has not taken out."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.DataParallel)]
    if not names:
        return
    blocks = " ".join(f"--block {name}" for name in names)
    raise ConfigError(
        f"the model has {listed(names)} in nn.DataParallel, which chooses its own devices: "
        f"block {blocks} lays it over those of the run"
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


def check_rows_of_ranks(model: nn.Module, sizes: Iterable[int], dp_size: int) -> None:
    """Raises ConfigError where SyncBatchNorm would train on the stand-in of a rank without rows.

    ``sizes`` are the rows that global batches have.
    """
    names = synchronized(model)
    for rows in sorted(sizes) if names else ():
        used = len(chunk_sizes(rows, dp_size))
        if used < dp_size:
            raise ConfigError(
                f"SyncBatchNorm ({listed(names)}) needs rows on every rank, and a batch of "
                f"{plural(rows, 'row')} has some on {used} of {dp_size}: "
                "choose another --batch-size, or fewer ranks"
            )


def try_one_batch(
    model: nn.Module,
    data: Dataset,
    batch: Batch,
    strategy: Strategy,
    used: Sequence[torch.device],
    evaluation: Evaluation,
    autocast: str,
) -> str:
    """Run one batch through model, loss and metrics on the host, and restore what that changes.

    ``autocast`` is the dtype of mixed precision, empty for none. Modules that draw random numbers are marked:
    replicas that share a generator compute them in order.
    Returns a note if the forward changes attributes, which replicas lose. Raises ConfigError.
    """
    before = _attributes(model)
    needs_gradients = strategy.needs.gradients and strategy.trains
    with preserved(model), without_ranks(model), torch.set_grad_enabled(strategy.trains):
        with (
            devices.autocast(devices.HOST, autocast),
            misfit_as_config_error(model),
            strategy.trying(model, used),
            drawing_modules(model) as draws,
        ):
            outputs = model(*batch.inputs)
        after = _attributes(model)
        with devices.autocast(devices.HOST, autocast):
            loss = _loss(data, outputs, batch.targets)
        evaluation.try_metrics(outputs, batch.targets)
        if needs_gradients and loss.requires_grad and (unused := _unused(model, loss)):
            strategy.unused(unused)
    mark_drawing(model, draws.names)
    changed = [name for name, value in after.items() if name not in before or before[name] != value]
    if not changed:
        return ""
    return f"the model changes {listed(changed)} in its forward: what replicas change is lost"


def _unused(model: nn.Module, loss: torch.Tensor) -> list[str]:
    """The parameters that train, and that the loss does not depend on."""
    trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    gradients = _gradients(loss, list(trainable.values()))
    return [name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None]


def _loss(data: Dataset, outputs: Any, targets: Any) -> torch.Tensor:
    try:
        return data.objective.on_one_device(outputs, targets)
    except ConfigError:
        raise
    except Exception as error:
        shapes = [", ".join(str(tuple(shape)) for shape in tensors.shapes(v)) for v in (outputs, targets)]
        raise ConfigError(
            f"the loss does not take the model's outputs {shapes[0]} with targets {shapes[1]}: "
            f"{describe(error)}"
        ) from error


def _gradients(loss: torch.Tensor, parameters: list[nn.Parameter]) -> list[torch.Tensor | None]:
    """The gradients, None where the loss does not depend on the parameter; the parameters keep theirs.

    ``autograd.grad`` refuses reentrant checkpointing. Hooks on finished gradients, which may train, wait.
    """
    kept = [(each, each.grad, each._post_accumulate_grad_hooks or {}) for each in parameters]
    copies = [dict(hooks) for *_, hooks in kept]
    try:
        for parameter, _, hooks in kept:
            parameter.grad = None
            hooks.clear()  # setting the attribute to None leaves them in place
        loss.backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in parameters]
    finally:
        for (parameter, gradient, hooks), copied_hooks in zip(kept, copies, strict=True):
            parameter.grad = gradient
            hooks.update(copied_hooks)


def _attributes(model: nn.Module) -> dict[str, Any]:
    """The plain attributes of every module, each as something that differs once the attribute has changed."""
    of_every_module = {*vars(nn.Module()), "training"}
    return {
        f"{name}.{key}".lstrip("."): _fingerprint(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in of_every_module
    }


def _fingerprint(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (id(value), value._version)
    if isinstance(value, int | float | str | bool | None):
        return value
    if isinstance(value, list | dict | set):
        return (id(value), len(value))
    return id(value)


@contextmanager
def misfit_as_config_error(model: nn.Module) -> Iterator[None]:
    """An exception inside the model's forward becomes a ConfigError that names the innermost module."""
    calls: list[tuple[str, nn.Module, list[torch.Tensor]]] = []

    def enter(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((name, module, list(tensors.walk((args, kwargs)))))

    def leave(module: nn.Module, args: Any, outputs: Any) -> None:
        calls.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(leave))
        try:
            yield
        except Exception as error:
            if isinstance(error, ConfigError) or not calls:
                raise
            raise ConfigError(_misfit_message(*calls[-1], error)) from error


def _misfit_message(name: str, module: nn.Module, inputs: list[torch.Tensor], error: Exception) -> str:
    where = f"module '{name}'" if name else "the model"
    definition = "" if list(module.children()) else f" ({module})"
    shown = [f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in inputs]
    got = ", ".join(shown) or "no tensor"
    return f"the model does not fit the data: {where}{definition} got {got}: {describe(error)}"

"""Lightning: ``Trainer(callbacks=[WatchCallback()])`` watches the training loop of ``trainer.fit``.

setup              the layers may be made later: by LightningModule.setup, or configure_model
strategy.setup     the module is complete and not laid out: the watch begins before it; where
                   configure_model lays out, it begins before the first fully_shard or parallelize_module
on_train_batch_*   around training_step, in which losses are observed
on_train_end       the verdict is printed, and the run ends
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss

from dpexp.config.errors import ConfigError
from dpexp.watch.hooks import Replaced
from dpexp.watch.loop import WatchedLoop
from dpexp.watch.losses import observe_torch_losses
from dpexp.watch.options import Options

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

Function = Callable[..., Any]


class WatchCallback(Callback):
    """Watches the first ``steps`` optimizer steps of each ``fit``, as ``dpexp.watch`` does.

    ``loss`` is the whole loss that ``training_step`` calls: a function, or the name of an attribute of the
    module. Without it PyTorch's loss functions are observed. The other options are those of ``dpexp.watch``.
    What ``self.log`` logs goes into the same run. ``run`` is the watch of the last ``fit``, and ends with it.

    Raises ConfigError for options that mean nothing, and in ``fit`` for a module that lacks the attribute or
    cannot be copied.
    """

    def __init__(
        self,
        loss: Function | str | None = None,
        steps: int = 4,
        name: str | None = None,
        track: bool = True,
        raises: bool = False,
    ) -> None:
        Options(None if isinstance(loss, str) else loss)
        self.run: WatchedLoop | None = None
        self._loss, self._name, self._track = loss, name, track
        self._options = Options(steps=steps, raises=raises)
        self._logged: dict[str, Any] = {}
        self._watched, self._replaced, self._of_batch = ExitStack(), ExitStack(), ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin before the strategy, or the module itself, lays the module out."""
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import parallelize_module

        if stage != "fit":
            return
        begin = cache(partial(self._begin, trainer, pl_module))  # once
        lay_out = _after(begin, trainer.strategy.setup)
        self._replaced.enter_context(_attribute(trainer.strategy, "setup", lay_out))
        layouts = {each: _after(begin, each) for each in (fully_shard, parallelize_module)}
        self._replaced.callback(Replaced(layouts).remove)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Observe ``training_step``; between batches the module is as it was."""
        self._of_batch.close()
        if self.run is not None and not self.run.done:
            for owner, name, value in self._observed(self.run, pl_module):
                self._of_batch.enter_context(_attribute(owner, name, value))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Record what ``self.log`` has logged."""
        self._of_batch.close()
        if self.run is not None and self.run.done:
            self._replaced.close()
        self._log(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the verdict, and end the run."""
        self._log(trainer)
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run by this error."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End what has not ended."""
        self._end()

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        self._replaced.close()
        loss = self._loss
        if isinstance(loss, str) and not callable(getattr(pl_module, loss, None)):
            raise ConfigError(f"{type(pl_module).__name__} has no function '{loss}' that could be its loss")
        with _attribute(pl_module, "__deepcopy__", partial(_copied, pl_module, trainer)):
            self.run = run = WatchedLoop.begin(pl_module, self._options, self._name, self._track)
        if trainer.is_global_zero:
            self._watched.callback(lambda: print(f"dpexp: {run}"))
        self._watched.enter_context(run)
        if loss is None:
            self._replaced.callback(observe_torch_losses(run).remove)
        elif not isinstance(loss, str):
            self._replaced.callback(Replaced({loss: run.observed(loss)}).remove)

    def _observed(self, run: WatchedLoop, module: Any) -> Iterator[tuple[Any, str, Any]]:
        """What stands in the place of attributes during ``training_step``: (owner, name, value).

        A loss that is a module is called without its hooks: it is not a part of the model.
        """
        yield module, "training_step", _step(run, module)
        if isinstance(self._loss, str):
            yield module, self._loss, run.observed(_unhooked(getattr(module, self._loss)))
        for part in module.modules() if self._loss is None else ():
            for name, child in part._modules.items():
                if isinstance(child, _Loss):
                    yield part, name, _unhooked(child)

    def _log(self, trainer: Any) -> None:
        """Record the metrics that were logged since the last time."""
        if self.run is not None and self._track:
            metrics, old = dict(trainer.callback_metrics), self._logged
            new = [key for key in metrics if key not in old or old[key].data_ptr() != metrics[key].data_ptr()]
            self.run.log(**{key: metrics[key] for key in new})
            self._logged = metrics

    def _end(self, error: BaseException | None = None) -> None:
        self._replaced.close()
        self._of_batch.close()
        self._watched.__exit__(type(error) if error is not None else None, error, None)


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, the object has this value in the place of its attribute."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = value
    try:
        yield
    finally:
        own.pop(name, None)
        own |= before


def _after(begin: Callable[[], None], function: Function) -> Function:
    """The function, which calls ``begin`` first."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        begin()
        return function(*args, **kwargs)

    return called


def _step(run: WatchedLoop, module: Any) -> Function:
    """The training step, which is no call of the model; Lightning minimizes what it returns."""
    step = run.outside(module.training_step)

    @wraps(module.training_step)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        output = step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if module.automatic_optimization and isinstance(loss, torch.Tensor):
            run.objective(loss)
        return output

    return training_step


def _copied(module: Any, trainer: Any, memo: dict[int, Any]) -> Any:
    """A deep copy that has the module's trainer, which a LightningModule leaves out, and logs nothing."""
    del vars(module)["__deepcopy__"]
    made = copy.deepcopy(module, memo)
    for part in made.modules():
        if "_trainer" in vars(part):
            nothing = lambda *_, **__: None  # noqa: E731
            vars(part).update(_trainer=trainer, log=nothing, log_dict=nothing)
    return made


def _unhooked(loss: Any) -> Any:
    """A loss that is a module as another object, with the same attributes and no hooks."""
    if isinstance(loss, nn.Module):
        loss = copy.copy(loss)
        vars(loss).update(_forward_hooks={}, _forward_pre_hooks={})
    return loss

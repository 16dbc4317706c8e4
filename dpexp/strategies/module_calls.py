"""Module calls: each call of each module of a model, observed from outside by forward hooks.

    with module_calls(model, entered, left):      entered(call)    before the forward of a module
        model(inputs)                             left(call)       after it, with its outputs

Recorded outputs, shapes, random layers, the module that does not fit and looked-up rows all come from here.
Replicas share the hooks of the module that they copy, and call them in their own threads.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dpexp.devices import current_device
from dpexp.strategies.modules import Part, parts


class ModuleCall(NamedTuple):
    """One call of ``module``: the part's own, or the copy of it in a replica.

    ``level`` counts the modules of the same name around it, which wrap it; ``order`` is that of definition.
    ``device`` and ``replica`` are None outside of all replicas. ``inputs`` are (args, kwargs).
    """

    part: Part
    level: int
    order: int
    module: nn.Module
    device: torch.device | None
    replica: int | None
    inputs: tuple[Any, dict[str, Any]]
    outputs: Any = None

    @property
    def name(self) -> str:
        """The name of the module in the model as written."""
        return self.part.name


Act = Callable[[ModuleCall], object]


@contextmanager
def module_calls(model: nn.Module, entered: Act | None = None, left: Act | None = None) -> Iterator[None]:
    """Inside, these get each call of a module of the placed model; a call that raises is not ``left``.

    Code that is compiled traces the hooks: see ``training.preserve.eager``.
    """
    handles = list[RemovableHandle]()
    levels = Counter[str]()
    distinct = dict[nn.Module, Part]()
    for part in parts(model):
        distinct.setdefault(part.module, part)  # a shared one has its first name
    for order, part in enumerate(distinct.values()):
        handles += _hooked(part, levels[part.name], order, entered, left)
        levels[part.name] += 1
    try:
        yield
    finally:
        for handle in handles:  # an ExitStack with an entry for each takes longer
            handle.remove()


def _hooked(
    part: Part, level: int, order: int, entered: Act | None, left: Act | None
) -> Iterator[RemovableHandle]:
    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        assert entered is not None
        entered(ModuleCall(part, level, order, module, *current_device(), (args, kwargs)))

    def after(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        assert left is not None
        left(ModuleCall(part, level, order, module, *current_device(), (args, kwargs), outputs))

    if entered is not None:
        yield part.module.register_forward_pre_hook(before, with_kwargs=True)
    if left is not None:
        yield part.module.register_forward_hook(after, with_kwargs=True)


@contextmanager
def running_calls(
    model: nn.Module, changes: Callable[[], object] = lambda: None
) -> Iterator[list[ModuleCall]]:
    """The calls that run now, the innermost last, of a model without replicas.

    ``changes`` is called before one begins or ends. A call that raises stays until the one around it ends:
    after an exception, the last is where it was raised.
    """
    running = list[ModuleCall]()

    def begin(call: ModuleCall) -> None:
        changes()
        running.append(call)

    def end(call: ModuleCall) -> None:
        changes()
        begun = [at for at, each in enumerate(running) if each.module is call.module]
        del running[max(begun, default=len(running)) :]  # with calls whose exception the model has caught

    with module_calls(model, begin, end):
        yield running

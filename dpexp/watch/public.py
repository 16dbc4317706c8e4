"""The function ``dpexp.watch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpexp.watch.options import Options

if TYPE_CHECKING:
    from torch import nn

    from dpexp.watch.loop import WatchedLoop


def watch(
    model: nn.Module,
    loss: Callable[..., Any] | None = None,
    clip_norm: float | Callable[[Any], Any] | None = None,
    *,
    weight: Callable[..., Any] | str | bool | None = None,
    steps: int = 4,
    raises: bool = False,
    replica: str | None = None,
    name: str | None = None,
    track: bool = True,
) -> WatchedLoop:
    """Watch the next ``steps`` optimizer steps of a training loop, and compare them with a single device.

    Call it on every rank, after ``init_process_group`` and before the model is laid out; then call
    ``run.loss`` for ``loss``. ``loss`` returns a scalar; without it the loss is inside the model, or only
    layout and synchronization are compared. ``clip_norm`` is the norm to which the loop clips, or a function
    that clips the gradients of a list of parameters. ``weight`` says what a call counts in the loss of all
    rows: a function of the loss's arguments (of the model's inputs where the loss is inside it) that returns
    a number, ``"sum"``, or False, by which no weights are compared; by default it is measured. ``raises``
    raises VerificationError inside the optimizer's step, on all ranks together. ``replica`` says how much of
    the model's copy is in memory: ``"full"``, or in ``"blocks"`` that are gathered one at a time; by default
    what is free decides. ``name`` is that of the run
    in MLflow; with ``track=False`` nothing is written.

    ``verdict()`` raises VerificationError or NotComparableError. As a context manager it ends the run at its
    exit.

    Raises ConfigError for a model that is laid out already, and for options that mean nothing.
    """
    from dpexp.watch.loop import WatchedLoop  # imports torch, which --help does without

    return WatchedLoop.begin(model, Options(loss, clip_norm, weight, steps, raises, replica), name, track)

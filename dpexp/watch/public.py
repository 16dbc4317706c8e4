"""The function ``dpexp.watch``; what needs torch is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from dpexp.watch.watched_loop import WatchedLoop


def watch(
    model: nn.Module,
    loss: Callable[..., Any] | None = None,
    clip_norm: float | Callable[[Any], Any] | None = None,
    *,
    weight: Callable[..., Any] | str | bool | None = None,
    steps: int = 4,
    raises: bool = False,
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
    raises VerificationError inside the optimizer's step, on all ranks together. ``name`` is that of the run
    in MLflow; with ``track=False`` nothing is written.

    ``verdict()`` raises VerificationError or NotComparableError. As a context manager it ends the run at its
    exit.

    Raises ConfigError for a model that is laid out already, and for options that mean nothing.
    """
    from torch import nn

    from dpexp.config.errors import ConfigError
    from dpexp.watch.layout import layout_of
    from dpexp.watch.recording import Recording
    from dpexp.watch.replay import Replay
    from dpexp.watch.step import Options
    from dpexp.watch.watched_loop import WatchedLoop

    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {type(model).__name__}, not a torch.nn.Module")
    if found := layout_of(model):
        raise ConfigError(
            f"the model is laid out already ({found}): call dpexp.watch before, on the model as written"
        )
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps is {steps!r}: it must be a whole number from 1")
    if loss is not None and not callable(loss):
        raise ConfigError(f"loss is {type(loss).__name__}, not a function")
    if not (
        clip_norm is None or callable(clip_norm) or (isinstance(clip_norm, int | float) and clip_norm > 0)
    ):
        raise ConfigError(
            f"clip_norm is {clip_norm!r}: it must be a number above 0, or a function of the parameters"
        )
    if not (weight is None or weight is False or weight == "sum" or callable(weight)):
        raise ConfigError(f"weight is {weight!r}: it must be a function, 'sum' or False")
    stated = {"clip_norm": clip_norm, "weight": weight, "steps": steps, "raises": raises}
    replay = Replay(model)
    recording = Recording.begin(model, name, stated) if track else Recording()
    return WatchedLoop(model, Options(loss, clip_norm, weight), steps, raises, recording, replay)

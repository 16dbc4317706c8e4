"""Options: what the user says of the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Those of ``dpexp.watch``. Raises ConfigError for one that means nothing."""

    loss: Callable[..., Any] | None = None
    clip_norm: float | Callable[[Any], Any] | None = None
    weight: Callable[..., Any] | str | bool | None = None
    steps: int = 4
    raises: bool = False
    replica: str | None = None

    def __post_init__(self) -> None:
        steps, loss, clip_norm, weight = self.steps, self.loss, self.clip_norm, self.weight
        if not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"steps is {steps!r}: it must be a whole number from 1")
        if loss is not None and not callable(loss):
            raise ConfigError(f"loss is {type(loss).__name__}, not a function")
        is_norm = isinstance(clip_norm, int | float) and clip_norm > 0
        if not (clip_norm is None or callable(clip_norm) or is_norm):
            raise ConfigError(
                f"clip_norm is {clip_norm!r}: it must be a number above 0, or a function of the parameters"
            )
        if self.replica not in (None, "full", "blocks"):
            raise ConfigError(f"replica is {self.replica!r}: it must be 'full' or 'blocks'")
        if not (weight is None or weight is False or weight == "sum" or callable(weight)):
            raise ConfigError(f"weight is {weight!r}: it must be a function, 'sum' or False")

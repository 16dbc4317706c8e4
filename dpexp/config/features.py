"""Features: what a data source knows about its samples, so that a model can be fitted to them.

Stands below both ``data`` (which says it) and ``models`` (which are built to it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("vector", "image", "ids", "sequence", "clicks")

PADDING = -100
"""The class of a step behind the end of its sequence: it does not count in loss and accuracy."""


@dataclass(frozen=True)
class Features:
    """One sample, in numbers. What a source does not know, or a kind does not have, is None.

    ``kind`` says how ``shape`` (without the batch) reads: ``vector`` (width,), ``image`` (channels,
    height, width), ``ids`` () or (length,), ``sequence`` (length, width), ``clicks`` (dense features,).
    ``stepwise`` says whether each step has a target, or the sample one in all.
    """

    kind: str
    shape: tuple[int, ...]
    classes: int | None = None
    targets: int | None = None
    vocabulary: int | None = None
    tables: int | None = None
    stepwise: bool | None = None

    @property
    def outputs(self) -> int | None:
        """How many values a model gives for one target: the classes, or a regression's width."""
        return self.classes if self.classes is not None else self.targets

    @property
    def width(self) -> int | None:
        """Values of one input vector: of a flattened image, of one step of a sequence."""
        if self.kind == "ids":
            return None
        if self.kind == "sequence":
            return self.shape[-1]
        return math.prod(self.shape)

    @property
    def step_width(self) -> int | None:
        """Values of one step where a model reads sequences; an image is read row by row."""
        if self.kind == "image":
            return self.shape[0] * self.shape[-1]
        return self.shape[-1] if self.kind == "sequence" else None

    @property
    def length(self) -> int | None:
        """Steps of a sequence, or ids of a window; an image is read row by row."""
        if self.kind == "image":
            return self.shape[-2]
        return self.shape[0] if self.kind in ("sequence", "ids") and self.shape else None

    @property
    def channels(self) -> int | None:
        """Channels of an image; a sequence is seen as an image of one."""
        return {"image": self.shape[:1], "sequence": (1,)}.get(self.kind, (None,))[0]

    @property
    def size(self) -> int | None:
        """Height of an image in pixels."""
        return self.shape[-2] if self.kind in ("image", "sequence") else None

"""Features: what a data source knows about its samples, so that a model can be built to match them.

Data sources describe their samples and models read the description; neither imports the other.
"""

import math
from dataclasses import dataclass

PADDING = -100
"""The target of a padded step: it does not count in loss and accuracy."""


@dataclass(frozen=True)
class Features:
    """One sample in numbers. A value is None where the source does not know it or the kind has none.

    ``kind`` decides what ``shape`` (without the batch) means: ``vector`` (width,), ``image`` (channels,
    height, width), ``ids`` () or (length,), ``sequence`` (length, width), ``clicks`` (dense features,).
    ``stepwise`` is True if each step has a target, False if the sample has one.
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
        """Values that a model returns for one target: the classes, or the width of a regression."""
        return self.classes if self.classes is not None else self.targets

    @property
    def width(self) -> int | None:
        """Values of one input vector: of a flattened image, or of one step of a sequence."""
        if self.kind == "ids":
            return None
        return self.shape[-1] if self.kind == "sequence" else math.prod(self.shape)

    @property
    def step_width(self) -> int | None:
        """Values of one step for a model of sequences; a step of an image is one row."""
        if self.kind == "image":
            return self.shape[0] * self.shape[-1]
        return self.shape[-1] if self.kind == "sequence" else None

    @property
    def length(self) -> int | None:
        """Steps of a sequence, ids of a window, or rows of an image."""
        if self.kind == "image":
            return self.shape[-2]
        return self.shape[0] if self.kind in ("sequence", "ids") and self.shape else None

    @property
    def channels(self) -> int | None:
        """Channels of an image."""
        return self.shape[0] if self.kind == "image" else None

    @property
    def size(self) -> int | None:
        """Height of an image in pixels."""
        return self.shape[-2] if self.kind == "image" else None

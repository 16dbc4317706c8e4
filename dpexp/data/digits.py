"""Digits: 1797 images of handwritten digits, 8 x 8 pixels, in the scikit-learn package; no download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998 (its test part).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpexp.config.features import Features
from dpexp.data.base import Loaded, Source
from dpexp.data.dataset import Samples
from dpexp.data.rng import generator

_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "vector": lambda images: images.flatten(1),
    "sequence": lambda images: images.transpose(1, 2).flatten(2),  # of its rows
}
"""Images as a model takes them that has such an ``input_kind``; others take them as they are."""
TRAIN = 1437
"""Images to train on; the other 360 are held out. The split does not depend on the run's seed."""


class DigitsSource(Source):
    """Images ``(1, 8, 8)`` and their digit; the values (0 to 16 in the files) have mean 0, variance 1."""

    name = "digits"
    features = Features("image", (1, 8, 8), classes=10, stepwise=False)

    def load(self, model: nn.Module, seed: int) -> Loaded:
        """Images ``(batch, 1, 8, 8)``, or as the model takes them, and digits ``(batch,)``."""
        from sklearn.datasets import load_digits  # takes a second

        bundled = load_digits()
        images = torch.tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 6 - 0.81
        digits = torch.tensor(bundled.target, dtype=torch.int64)
        if view := _VIEWS.get(getattr(model, "input_kind", "")):
            images = view(images)
        order = torch.randperm(len(digits), generator=generator(0, "digits: training and test images"))
        train, test = (
            Samples.of(((images[rows],), digits[rows]), self.where) for rows in (order[:TRAIN], order[TRAIN:])
        )
        description = f"{TRAIN} images of 8 x 8 to train and {test.samples} to test"
        return Loaded(f"handwritten digits, {description}", train, test)

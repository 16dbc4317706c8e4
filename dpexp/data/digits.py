"""Digits: 1797 images of handwritten digits, 8 x 8 pixels, that scikit-learn ships; no download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998 (its test part).
"""

from __future__ import annotations

import torch
from torch import nn

from dpexp.config.features import Features
from dpexp.data.base import Source
from dpexp.data.dataset import TensorDataset
from dpexp.data.rng import generator

TRAIN = 1437
"""Images to train on; the other 360 are held out. Which ones does not depend on the run's seed."""


class DigitsSource(Source):
    """Images ``(1, 8, 8)`` and their digit; the values (0 to 16 in the files) have mean 0, variance 1."""

    features = Features("image", (1, 8, 8), classes=10, stepwise=False)

    def dataset(self, model: nn.Module, seed: int) -> TensorDataset:
        from sklearn.datasets import load_digits

        bundled = load_digits()
        images = torch.tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 6 - 0.81
        digits = torch.tensor(bundled.target, dtype=torch.int64)
        order = torch.randperm(len(digits), generator=generator(0, "digits: training and test images"))
        train, test = order[:TRAIN], order[TRAIN:]
        return self.in_memory(
            "digits",
            (images[train], digits[train]),
            (images[test], digits[test]),
            f"handwritten digits, {TRAIN} images of 8 x 8 to train and {len(test)} to test",
            self.features,
            model,
        )

"""CNN: two convolutions, two poolings and a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CNN(nn.Module):
    """Images ``(batch, channels, size, size)`` -> logits ``(batch, out)``.

    ::

        conv1 3x3, width -> ReLU -> pool 2 -> conv2 3x3, 2 width -> ReLU -> pool 2 -> fc

    Source: LeNet-5 in outline (LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to
    document recognition", 1998), with padding and ReLU so that it suits 8 x 8 images. It has neither
    BatchNorm nor dropout: every layout of it computes the same thing, in training too.
    """

    input_kind = "image"

    def __init__(self, channels: int, size: int, width: int, out: int) -> None:
        super().__init__()
        self.size = size
        self.conv1 = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(2 * width * (size // 4) ** 2, out)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(torch.relu(self.conv1(images)))
        features = self.pool(torch.relu(self.conv2(features)))
        logits: Tensor = self.fc(features.flatten(1))
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal images and uniform classes."""
        shape = (samples, self.conv1.in_channels, self.size, self.size)
        images = torch.randn(shape, generator=generator)
        return images, torch.randint(self.fc.out_features, (samples,), generator=generator)

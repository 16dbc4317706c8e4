"""Models of images: a convolutional network, and capsules with dynamic routing."""

import torch
from torch import Tensor, nn
from torch.nn import functional

PRESENT, ABSENT, DOWN_WEIGHT = 0.9, 0.1, 0.5  # m+, m- and lambda of the paper's equation 4


class ImageModel(nn.Module):
    """Takes images ``(batch, channels, size, size)``, and returns a number for each of ``out`` classes."""

    from_data = (("channels", "channels"), ("size", "size"), ("out", "outputs"))

    def __init__(self, channels: int, size: int, out: int) -> None:
        super().__init__()
        self.channels, self.size, self.out = channels, size, out

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal images ``(samples, channels, size, size)`` and uniform classes ``(samples,)``."""
        images = torch.randn((samples, self.channels, self.size, self.size), generator=generator)
        return images, torch.randint(self.out, (samples,), generator=generator)


class CNN(ImageModel):
    """Images -> logits ``(batch, out)``.

    ::

        conv1 3x3, width -> ReLU -> pool 2 -> conv2 3x3, 2 width -> ReLU -> pool 2 -> fc

    Source: LeNet-5 in outline (LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to
    document recognition", 1998), with padding and ReLU for 8 x 8 images. It has neither BatchNorm nor
    dropout, so that every layout computes the same in training too.
    """

    def __init__(self, channels: int = 1, size: int = 8, width: int = 16, out: int = 10) -> None:
        super().__init__(channels, size, out)
        self.conv1 = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(2 * width * (size // 4) ** 2, out)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, out)``."""
        features = self.pool(torch.relu(self.conv1(images)))
        features = self.pool(torch.relu(self.conv2(features)))
        return self.fc(features.flatten(1))


class CapsNet(ImageModel):
    """Images -> lengths of the class capsules ``(batch, out)``, 0 to 1.

    ::

        conv 3x3 -> ReLU -> primary: conv 3x3, stride 2, cut into capsules -> classes: routed capsules

    A capsule is a vector: its direction encodes how an object looks, its length whether it is present.

    Source: Sabour, Frosst, Hinton, "Dynamic routing between capsules", 2017; smaller here, for 8 x 8
    images, and without the reconstruction network.
    """

    def __init__(
        self,
        channels: int = 1,
        size: int = 8,
        width: int = 32,
        capsules: int = 8,
        routing: int = 3,
        out: int = 10,
    ) -> None:
        super().__init__(channels, size, out)
        self.conv = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.primary = PrimaryCapsules(width, capsules, dim=8)
        self.classes = ClassCapsules(capsules * ((size + 1) // 2) ** 2, 8, out, dim=16, routing=routing)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, out)``."""
        features = torch.relu(self.conv(images))
        return _norm(self.classes(self.primary(features))).squeeze(-1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The margin loss of lengths ``(batch, out)`` and classes ``(batch,)``: the mean over rows."""
        present = functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        missed = torch.relu(PRESENT - outputs) ** 2
        imagined = torch.relu(outputs - ABSENT) ** 2
        return (present * missed + DOWN_WEIGHT * (1 - present) * imagined).sum(dim=1).mean()


class PrimaryCapsules(nn.Module):
    """``capsules`` vectors of ``dim`` numbers at every second pixel, squashed."""

    def __init__(self, width: int, capsules: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(width, capsules * dim, kernel_size=3, stride=2, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """``(batch, width, size, size)`` -> ``(batch, capsules * (size/2)**2, dim)``."""
        cut: Tensor = self.conv(features).unflatten(1, (-1, self.dim))  # (batch, capsules, dim, h, w)
        return squash(cut.flatten(3).transpose(2, 3).flatten(1, 2))


class ClassCapsules(nn.Module):
    """A capsule for each class, by routing (procedure 1 of the paper).

    Each capsule below predicts each class capsule. Predictions that agree with the weighted sum of all get a
    larger weight in the next round. Gradients flow through the last round only.
    """

    def __init__(self, below: int, below_dim: int, classes: int, dim: int, routing: int) -> None:
        super().__init__()
        self.routing = routing
        self.weight = nn.Parameter(torch.randn(below, classes, dim, below_dim) * 0.1)

    def forward(self, below: Tensor) -> Tensor:
        """``(batch, below, below_dim)`` -> ``(batch, classes, dim)``."""
        predicted = torch.einsum("ncod,bnd->bnco", self.weight, below)
        agreement = predicted.new_zeros(predicted.shape[:3])
        fixed = predicted.detach()
        for _ in range(self.routing - 1):
            capsules = self.combine(fixed, agreement)
            agreement = agreement + torch.einsum("bnco,bco->bnc", fixed, capsules)
        return self.combine(predicted, agreement)

    @staticmethod
    def combine(predicted: Tensor, agreement: Tensor) -> Tensor:
        """``(batch, below, classes, dim)`` and ``(batch, below, classes)`` -> ``(batch, classes, dim)``.

        A class capsule is a sum of predictions, with weights that add up to 1 for each capsule below.
        """
        return squash(torch.einsum("bnc,bnco->bco", agreement.softmax(dim=2), predicted))


def _norm(capsules: Tensor) -> Tensor:
    """The lengths ``(…, 1)``; the gradient of a zero capsule is finite."""
    return (capsules.square().sum(dim=-1, keepdim=True) + torch.finfo(capsules.dtype).tiny).sqrt()


def squash(capsules: Tensor) -> Tensor:
    """``(…, dim)`` in the same direction, of length ``|s|**2 / (1 + |s|**2)`` (equation 1 of the paper)."""
    length = _norm(capsules)
    return capsules * (length / (1 + length.square()))

"""Models of linear layers: one layer, three named blocks, a multi-layer perceptron."""

import itertools

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` by one layer, ``fc``.

    Source: S. Kim, "Optional: Data Parallelism", PyTorch tutorials (5 -> 2 there).
    """

    input_kind = "vector"

    def __init__(self, in_: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(in_, out)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.fc(inputs)
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and targets: a regression of noise on noise."""
        inputs = torch.randn(samples, self.fc.in_features, generator=generator)
        return inputs, torch.randn(samples, self.fc.out_features, generator=generator)


class Blocks(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` through ``block1``, ``block2`` and ``block3``, all linear.

    Source: "Multi-GPU examples", PyTorch tutorials, where only block2 is wrapped in DataParallel
    (10 -> 20 -> 20 -> 20 there).
    """

    input_kind = "vector"

    def __init__(self, in_: int, hidden: int, out: int) -> None:
        super().__init__()
        self.block1 = nn.Linear(in_, hidden)
        self.block2 = nn.Linear(hidden, hidden)
        self.block3 = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.block3(self.block2(self.block1(inputs)))
        return outputs

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and targets: a regression of noise on noise."""
        inputs = torch.randn(samples, self.block1.in_features, generator=generator)
        return inputs, torch.randn(samples, self.block3.out_features, generator=generator)


class MLP(nn.Module):
    """Vectors ``(batch, in)`` -> logits ``(batch, out)``: ``depth`` hidden layers with ReLU, then ``head``.

    ``layers`` is a sequence, so that a part of it has a name: ``layers.0`` is the first linear layer.

    Source: Rumelhart, Hinton, Williams, "Learning representations by back-propagating errors", 1986,
    with ReLU for the sigmoid.
    """

    input_kind = "vector"

    def __init__(self, in_: int, hidden: int, depth: int, out: int) -> None:
        super().__init__()
        self.width = in_
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([in_] + [hidden] * depth):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(inputs))
        return logits

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors and uniform classes."""
        inputs = torch.randn(samples, self.width, generator=generator)
        return inputs, torch.randint(self.head.out_features, (samples,), generator=generator)

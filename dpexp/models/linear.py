"""Models of linear layers: one layer, three named blocks, a multi-layer perceptron."""

import itertools

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` by one layer, ``fc``.

    Source: S. Kim, "Optional: Data Parallelism", PyTorch tutorials (5 -> 2 there).
    """

    input_kind = "vector"
    from_data = (("in", "width"), ("out", "outputs"))

    def __init__(self, in_: int = 5, out: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(in_, out)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, in)`` -> ``(batch, out)``."""
        return self.fc(inputs)

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A regression of noise ``(samples, out)`` on noise ``(samples, in)``."""
        inputs = torch.randn(samples, self.fc.in_features, generator=generator)
        return inputs, torch.randn(samples, self.fc.out_features, generator=generator)


class Blocks(nn.Module):
    """``(batch, in)`` -> ``(batch, out)`` through ``block1``, ``block2`` and ``block3``, all linear.

    Source: "Multi-GPU examples", PyTorch tutorials, where only block2 is wrapped in DataParallel
    (10 -> 20 -> 20 -> 20 there).
    """

    input_kind = "vector"
    from_data = (("in", "width"), ("out", "outputs"))

    def __init__(self, in_: int = 10, hidden: int = 20, out: int = 20) -> None:
        super().__init__()
        self.block1 = nn.Linear(in_, hidden)
        self.block2 = nn.Linear(hidden, hidden)
        self.block3 = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, in)`` -> ``(batch, hidden)`` -> ``(batch, hidden)`` -> ``(batch, out)``."""
        return self.block3(self.block2(self.block1(inputs)))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A regression of noise ``(samples, out)`` on noise ``(samples, in)``."""
        inputs = torch.randn(samples, self.block1.in_features, generator=generator)
        return inputs, torch.randn(samples, self.block3.out_features, generator=generator)


class MLP(nn.Module):
    """Vectors ``(batch, in)`` -> logits ``(batch, out)``: ``depth`` hidden layers with ReLU, then ``head``.

    Source: Rumelhart, Hinton, Williams, "Learning representations by back-propagating errors", 1986,
    with ReLU for the sigmoid.
    """

    input_kind = "vector"
    from_data = (("in", "width"), ("out", "outputs"))

    def __init__(self, in_: int = 16, hidden: int = 64, depth: int = 2, out: int = 10) -> None:
        super().__init__()
        self.width = in_
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise([in_] + [hidden] * depth):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(hidden, out)

    def forward(self, inputs: Tensor) -> Tensor:
        """``(batch, in)`` -> ``(batch, out)``."""
        return self.head(self.layers(inputs))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal vectors ``(samples, in)`` and uniform classes ``(samples,)``."""
        inputs = torch.randn(samples, self.width, generator=generator)
        return inputs, torch.randint(self.head.out_features, (samples,), generator=generator)

"""Small tensors, which are compared together, are judged to the bit as each by itself."""

import math

import pytest
import torch

from dpexp.verification.limits.compare import Limits, worst
from dpexp.verification.limits.norms import distance, magnitude
from dpexp.verification.limits.parts import parts, parts_of
from dpexp.verification.limits.small_tensors import SMALL, distances, magnitudes

SHAPES = [(1,), (4,), (4, 4), (2, 8), (3, 5, 2), (33,), (64, 64), (), (SMALL + 1,), (0,)]


def _numbers(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of all shapes, of usual numbers, zeros, masks, tiny and huge ones, NaN and infinities."""
    random = torch.Generator().manual_seed(seed)

    def usual(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    def some(value: float, numbers: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.rand(numbers.shape, generator=random) > 0.6, value, numbers)

    return {
        f"{kind} {shape}": made
        for shape in SHAPES
        for kind, made in {
            "usual": usual(shape),
            "float32": usual(shape).float(),
            "transposed": usual((*shape, 3)).transpose(0, -1),
            "zeros": torch.zeros(shape, dtype=torch.float64),
            "some zeros": some(0.0, usual(shape)),
            "masked": some(-3.4e38, usual(shape)),
            "tiny": usual(shape) * 1e-310,
            "huge": usual(shape) * 1e300,
            "wide": usual(shape) * 2.0 ** torch.randint(-60, 60, shape, generator=random).double(),
            "NaN": some(math.nan, usual(shape)),
            "infinite": some(math.inf, usual(shape)),
            "integers": torch.randint(0, 9, shape, generator=random),
        }.items()
    }


FOUND = {
    "equal": lambda tensor: tensor.clone(),
    "rounded": lambda tensor: tensor * (1 + torch.finfo(torch.float64).eps),
    "otherwise": lambda tensor: tensor + 1,
    "of another sign": lambda tensor: -tensor,
    "infinite": lambda tensor: tensor * math.inf,
}


@pytest.mark.parametrize("how", FOUND)
def test_small_tensors_are_as_far_apart_as_each_by_itself(how: str) -> None:
    expected = _numbers(0)
    found = {name: FOUND[how](tensor).to(tensor.dtype) for name, tensor in expected.items()}
    del found["usual (4, 4)"]
    found["usual (2, 8)"] = found["usual (2, 8)"].reshape(4, 4)
    together = parts_of(found, expected)
    assert repr(together) == repr({name: parts(found.get(name), expected[name]) for name in expected})
    assert repr(magnitudes(expected)) == repr({name: magnitude(each) for name, each in expected.items()})
    apart = {name: distance(found[name], each) for name, each in expected.items() if name in found}
    assert repr(distances(found, expected)) == repr(apart)
    for noise in (
        {},
        {("gradients", 1, "masked (33,)"): [1e-3, 2e30], ("gradients", 1, "huge (4,)"): [1e200]},
    ):
        limits = Limits(1e-12, 1e-4, noise=noise)
        one_by_one = worst(limits.judge("gradients", 1, together).values())
        assert repr(limits.largest("gradients", 1, together)[0]) == repr(one_by_one)


def test_small_tensors_of_types_that_have_none_in_common_are_compared() -> None:
    expected = {"eight bits": torch.ones(4).to(torch.float8_e4m3fn), "usual": torch.ones(4)}
    assert magnitudes(expected) == {"eight bits": 2.0, "usual": 2.0}
    assert set(distances(expected, expected).values()) == {0.0}

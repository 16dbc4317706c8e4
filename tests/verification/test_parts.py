"""Compare: no error hides beside large numbers, and what rounding has made is not an error."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpexp.verification.compare import (
    Difference,
    Limits,
    Parts,
    noise_of,
    parts,
    parts_of,
    relative_error,
    spectrum,
)
from dpexp.verification.rounding import DRAWS, DRAWS_OF_SHORT, MARGIN, NEGLIGIBLE, TWICE, largest

DOUBLE = torch.float64
LARGE = (-torch.finfo(DOUBLE).max, -1e300, -1e9, 3e7, math.inf, -math.inf)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return relative_error({"": found}, {"": expected})


@pytest.mark.parametrize("large", LARGE)
@given(seed=st.integers(0, 1 << 20), count=st.integers(1, 40), scale=st.sampled_from((1.0, 1e-9, 1e-200)))
def test_an_error_of_a_thousandth_shows_beside_any_large_number(
    large: float, seed: int, count: int, scale: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    usual = (torch.rand(count, generator=rng, dtype=DOUBLE) + 0.5) * scale
    mask = torch.full((7,), large, dtype=DOUBLE)
    expected = torch.cat([mask, usual])[torch.randperm(count + 7, generator=rng)]
    wrong = torch.where(expected.abs() < 2 * scale, expected * 1.001, expected)
    assert 1e-4 < error(wrong, expected) < 1e-2
    assert error(expected.clone(), expected) == 0.0


@pytest.mark.parametrize("integers", [torch.tensor([2**53, 7]), torch.tensor([True, False])])
def test_integers_are_equal_or_wrong(integers: torch.Tensor) -> None:
    assert error(integers.clone(), integers) == 0.0
    assert error(integers ^ 1, integers) >= 1.0
    assert error(torch.tensor([2**53 + 1]), torch.tensor([2**53])) >= 1.0


def test_sparse_tensors_are_compared_with_sparse_and_with_dense_ones() -> None:
    rows = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 3), (4, 3), check_invariants=True)
    other = torch.sparse_coo_tensor([[2]], torch.ones(1, 3), (4, 3), check_invariants=True)
    for same in (rows, rows.coalesce(), rows.to_dense()):
        assert error(same, rows) == error(rows, same) == 0.0
        assert error(other, same) == math.inf


def test_equal_infinities_do_not_differ_and_others_do() -> None:
    mask = torch.tensor([0.0, -math.inf, math.nan])
    assert error(mask.clone(), mask) == 0.0
    for wrong in (0.0, math.inf, math.nan):
        assert error(torch.tensor([0.0, wrong, math.nan]), mask) == math.inf


def test_a_number_that_a_sum_has_left_may_be_off_as_larger_ones_beside_it_are() -> None:
    rng = torch.Generator().manual_seed(0)
    expected = torch.rand(1 << 16, generator=rng, dtype=DOUBLE) + 0.5
    expected[7] = 2.0**-30
    rounded = expected + 2.0**-53 * torch.randn(1 << 16, generator=rng, dtype=DOUBLE).round()
    rounded[7] = expected[7] + 2.0**-52
    wrong = rounded.clone()

    def judged(found: torch.Tensor) -> Difference:
        return Limits(1e-12, 1e-4).judge("gradients", 1, {"": parts(found, expected)})[""]

    assert judged(rounded).ratio < 1
    assert judged(rounded).limit == 1e-12, "nothing was measured, and the tolerance is the usual one"
    wrong[7] = expected[7] + 2.0**-46
    assert judged(wrong).ratio > 1, "the others are far more exact"
    wrong[7] = -expected[7]
    assert judged(wrong).error == pytest.approx(2.0)


def test_measured_rounding_allows_what_it_explains_and_no_more() -> None:
    key = ("gradients", "bias")
    limits = Limits(1e-12, 1e-4, noise={key: (1e-17,)})
    weight = Parts([1.0], [0.0])

    def ratio(norm: float, apart: float) -> float:
        return limits.judge("gradients", 1, {"weight": weight, "bias": Parts([norm], [apart])})["bias"].ratio

    assert ratio(1e-18, 0.6e-12) < 1 < ratio(1e-18, 0.8e-12), "it is nothing but rounding beside the weight"
    assert ratio(1e-9, 0.9e-17) < 1 < ratio(1e-9, 1.1e-9), "it is small"
    assert ratio(1.0, 0.9e-12) < 1 < ratio(1.0, 1.1e-12)


def test_a_tensor_of_which_rounding_would_hide_a_tenth_is_not_comparable() -> None:
    def judged(noise: float, apart: float, head: float) -> Difference:
        limits = Limits(1e-12, 1e-4, noise={("gradients", "bias"): (noise,)})
        pair = {"bias": Parts([1.0], [apart]), "head": Parts([head], [0.0])}
        return limits.judge("gradients", 1, pair)["bias"]

    explained = judged(0.09, 0.08, 1.0)
    assert (explained.is_comparable, explained.error, explained.limit) == (True, 0.08, 0.09)
    assert not judged(0.2, 0.15, 1.0).is_comparable
    beside_others = judged(0.2, 0.15, 1e5)
    assert (beside_others.is_comparable, beside_others.limit) == (True, pytest.approx(2.83e-6, rel=1e-2))
    assert judged(0.2, 1e-13, 1.0).is_comparable, "it is the same without any measurement"
    wrong = judged(0.2, 0.3, 1.0)
    assert wrong.is_comparable
    assert wrong.ratio == pytest.approx(1.5)


def test_what_is_zero_but_for_rounding_is_equal_beside_its_neighbours() -> None:
    """A bias before a batch norm has such a gradient, which is another with another number of threads."""
    tensors = {"weight": Parts([1.0], [1e-4]), "bias": Parts([1e-8], [3e-8]), "frozen": Parts([0.0], [0.0])}
    apart = noise_of({"gradients": tensors}, least=1e-5)
    assert apart == {
        ("gradients", "weight"): [1e-4],
        ("gradients", "bias"): [0.0],
        ("gradients", "frozen"): [0.0],
    }
    assert noise_of({"gradients": tensors})["gradients", "bias"] == [3e-8]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@given(
    seed=st.integers(0, 1 << 20),
    of_single=st.lists(st.booleans(), min_size=1, max_size=40),
    of_layout=st.lists(st.booleans(), min_size=40, max_size=40),
    size=st.sampled_from((1.0, 1e-30, 1e30)),
)
def test_a_tensor_that_is_zero_but_for_rounding_is_equal_whichever_of_its_numbers_are_exactly_zero(
    dtype: torch.dtype, seed: int, of_single: list[bool], of_layout: list[bool], size: float
) -> None:
    rng, eps = torch.Generator().manual_seed(seed), torch.finfo(dtype).eps

    def rounded(is_zero: list[bool]) -> torch.Tensor:
        """In float64, as what is compared is."""
        numbers = torch.randn(len(of_single), generator=rng, dtype=DOUBLE) * eps * size
        return numbers.masked_fill_(torch.tensor(is_zero[: len(of_single)]), 0.0)

    weight = torch.full((64,), size, dtype=DOUBLE)
    expected = {"bias": rounded(of_single), "weight": weight}
    margin, count = (MARGIN, DRAWS) if dtype in (torch.float64, torch.float32) else (TWICE, DRAWS_OF_SHORT)
    again = [{"bias": rounded(of_single), "weight": weight} for _ in range(count)]
    draws = [noise_of({"gradients": parts_of(each, expected)}) for each in again]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * eps)
    limits = Limits(tolerance, NEGLIGIBLE[dtype], eps, noise=largest(draws, margin))
    found = parts_of({"bias": rounded(of_layout), "weight": weight}, expected)
    judged = limits.judge("gradients", 1, found)["bias"]
    assert judged.is_comparable
    assert judged.ratio <= 1
    wrong = parts_of({"bias": torch.full_like(expected["bias"], size), "weight": weight}, expected)
    assert limits.judge("gradients", 1, wrong)["bias"].ratio > 1


def test_zeros_beside_other_numbers_are_as_exact_as_the_smallest_of_them() -> None:
    def ratio(off: float, *expected: float) -> float:
        numbers = torch.tensor(expected, dtype=DOUBLE)
        found = torch.where(numbers == 0, off, numbers)
        return Limits(1e-12, 1e-4).judge("gradients", 1, {"": parts(found, numbers)})[""].ratio

    assert ratio(1e-16, 3.0, 0.0, 1.0) < 1 < ratio(1e-13, 3.0, 0.0, 1.0)
    assert ratio(1e-22, 1e-6, 0.0, -1e30) < 1 < ratio(1e-16, 1e-6, 0.0, -1e30), "a mask hides nothing"


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32, torch.bfloat16, torch.complex64])
@given(
    seed=st.integers(0, 1 << 20), cut=st.integers(0, 60), large=st.sampled_from((1.0, -1e9, -1e30, math.inf))
)
def test_the_spectra_of_shards_add_to_that_of_their_tensor(
    dtype: torch.dtype, seed: int, cut: int, large: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    expected = (torch.randn(60, generator=rng, dtype=DOUBLE) * 2.0 ** torch.arange(-30, 30)).to(dtype)
    expected[torch.randperm(60, generator=rng)[:9]] = large
    expected[torch.randperm(60, generator=rng)[:5]] = 0.0
    found = expected * 1.01
    shards = spectrum(found[:cut], expected[:cut]) + spectrum(found[cut:], expected[cut:])
    full = parts(found, expected)
    for of_shards, of_full in zip(
        (shards.parts.norms, shards.parts.apart, shards.parts.counts),
        (full.norms, full.apart, full.counts),
        strict=True,
    ):
        assert of_shards == pytest.approx(of_full, rel=1e-12)


def test_an_equal_shard_adds_its_numbers_to_those_of_its_size() -> None:
    ones = torch.ones(8)
    half = spectrum(ones * 1.5, ones) + spectrum(ones, ones.clone())
    assert (half.parts.norms, half.parts.apart) == ([4.0], [pytest.approx(2**0.5)])
    masked = torch.cat([ones, torch.full((8,), -1e9)])
    both = (spectrum(masked, masked.clone()) + spectrum(masked * 2, masked)).parts
    assert both.norms == pytest.approx([8**0.5, 4e9 * 1.0], rel=1e-6)
    none = torch.zeros(0)
    assert spectrum(none, none) + spectrum(ones * 1.5, ones) == spectrum(ones * 1.5, ones)
    assert spectrum(none, none).parts.apart == [0.0]
    missing = spectrum(None, ones) + spectrum(ones, ones.clone())
    assert missing.parts.apart == [8**0.5]
    assert pickle.loads(pickle.dumps(half)) == half

"""Patterns: a difference is recognized for any shapes, shards and factors, or nothing is said about it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dpexp.verification.diagnosis import patterns

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ROWS = st.lists(st.integers(1, 9), min_size=2, max_size=5)
SEEDS = st.integers(0, 10_000)


def drawn(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(SHAPES, SHAPES, SEEDS, st.sampled_from([0.0, 1.0, float("nan"), float("inf")]))
def test_any_pair_of_outputs_can_be_described(
    found: tuple[int, ...], expected: tuple[int, ...], seed: int, factor: float
) -> None:
    text = patterns.of_rows(drawn(found, seed) * factor, drawn(expected, seed + 1))
    assert isinstance(text, str)
    if found != expected:
        assert "instead of" in text


@given(st.integers(2, 40), st.integers(2, 5), SEEDS)
def test_swapped_shards_are_recognized_for_any_number_of_rows(rows: int, shards: int, seed: int) -> None:
    right = drawn((rows, 3), seed)
    pieces = right.chunk(shards)
    text = patterns.of_rows(torch.cat(pieces[::-1]), right)
    assert text.endswith("shards are swapped")


def gradients(rows: list[int], factors: list[float], seed: int) -> list[float] | None:
    shards = [drawn((12,), seed + index) for index in range(len(rows))]
    found = sum((a * shard for a, shard in zip(factors, shards, strict=True)), torch.zeros(12).double())
    return patterns.coefficients(found, torch.zeros_like(found), shards)


@given(ROWS, SEEDS)
def test_every_usual_error_of_gradients_has_its_own_words(rows: list[int], seed: int) -> None:
    count, total = len(rows), sum(rows)
    shares = [n / total for n in rows]
    usual = {
        "times too large": [share * count for share in shares],
        "once too often": [share / count for share in shares],
        "sum of the rank": [1.0] * count,
        "(of ": [0.0, *shares[1:]],
    }
    if len(set(rows)) > 1:
        usual["mean of the rank"] = [1 / count] * count
    for words, factors in usual.items():
        fitted = gradients(rows, factors, seed)
        assert fitted is not None
        text = patterns.of_coefficients(fitted, rows, "rank")
        is_single = words == "(of " and count > 2 and sum(1 for share in factors if share) == 1
        is_factor = words == "sum of the rank" and len(set(rows)) == 1
        assert words in text or is_single or (is_factor and "times too large" in text)


def test_gradients_that_do_not_determine_their_shards_are_not_explained() -> None:
    same = drawn((5,), 0)
    zeros = torch.zeros(9, dtype=torch.float64)
    assert patterns.coefficients(same, zeros[:5], [same, 2 * same]) is None
    assert patterns.coefficients(drawn((2,), 0), zeros[:2], [drawn((2,), 1), drawn((2,), 2)]) is None
    assert patterns.coefficients(drawn((9,), 0), zeros, [drawn((9,), 1), drawn((9,), 2)]) is None


def test_shards_that_leave_the_difference_as_it_is_do_not_explain_it() -> None:
    shards = [drawn((12,), 1), drawn((12,), 2)]
    right = shards[0] + shards[1]
    assert patterns.coefficients(right + 1e-8 * drawn((12,), 3), right, shards) is None
    assert patterns.factor(right * 1.5 + 1e-9 * drawn((12,), 3), right) is not None
    assert patterns.factor(right * 1.0005 + 5e-6 * drawn((12,), 3), right) is None


def test_factors_of_shards_that_may_not_be_there_are_not_listed() -> None:
    odd, usual = [-0.59, -5.6, -9.4, -0.1], [1.0] * 4
    assert "by -0.59, -5.6" in patterns.of_coefficients(odd, [2] * 4)
    assert patterns.of_coefficients(odd, [2] * 4, are_known=False) == ""
    assert "4 times too large" in patterns.of_coefficients(usual, [2] * 4, are_known=False)


def test_equal_rows_do_not_show_which_row_is_where() -> None:
    found, expected = torch.ones(4, 2).double(), torch.ones(4, 2).double()
    expected[:3, 0] = 0
    assert patterns.of_rows(found, expected) == "rows 0 to 2 differ, the others are right"
    found = drawn((4, 2), 0)
    assert "repeat" in patterns.of_rows(found[[3, 3, 3, 3]], found)


def test_a_factor_of_nearly_one_is_rounding() -> None:
    right = drawn((12,), 0)
    scale = patterns.factor(right.float().double(), right)
    assert scale is not None
    assert "but for rounding" in patterns.of_factor(scale, 2, "rank")

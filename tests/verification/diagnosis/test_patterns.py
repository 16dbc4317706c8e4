"""Patterns: a difference is recognized for any shapes, shards and factors, or nothing is said about it."""

import pytest
import torch
from helpers.in_ranks import in_ranks
from hypothesis import given
from hypothesis import strategies as st

from dpexp.distributed.group import ProcessGroup
from dpexp.verification.diagnosis import patterns
from dpexp.verification.diagnosis.locate import located
from dpexp.verification.diagnosis.patterns import Found

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


@given(ROWS, SEEDS)
def test_every_usual_error_of_gradients_has_its_own_words(rows: list[int], seed: int) -> None:
    count, total = len(rows), sum(rows)
    shares = [n / total for n in rows]
    shards = [drawn((12,), seed + index) for index in range(count)]
    usual = {
        "times too large": [share * count for share in shares],
        "once too often": [share / count for share in shares],
        "that of rank 0 alone": [shares[0], *[0.0] * (count - 1)],
        "as --reduction declares": shares,
    }
    if len(set(rows)) > 1:
        usual |= {"mean of the rank": [1 / count] * count, "sum of the rank": [1.0] * count}
    for words, factors in usual.items():
        found = torch.stack([a * shard for a, shard in zip(factors, shards, strict=True)]).sum(0)
        assert words in patterns.of_shards(found, shards, rows, shares, "rank")[0]
    assert patterns.of_shards(drawn((12,), seed + 99), shards, rows, shares, "rank") == ("", None)


def test_a_factor_explains_a_difference_or_is_not_named() -> None:
    right = drawn((12,), 1)
    assert patterns.factor(right * 1.5 + 1e-9 * drawn((12,), 3), right) is not None
    assert patterns.factor(right * 1.0005 + 5e-6 * drawn((12,), 3), right) is None


@given(SEEDS, st.integers(0, 12), st.sampled_from([torch.float64, torch.bfloat16, torch.complex64]))
def test_the_moments_of_shards_add_to_those_of_their_tensor(seed: int, cut: int, dtype: torch.dtype) -> None:
    found, of = (drawn((3, 4), seed + each).to(dtype) for each in (0, 1))
    shards = patterns.moments(found.flatten()[:cut], of.flatten()[:cut])
    shards += patterns.moments(found.flatten()[cut:], of.flatten()[cut:])
    full = patterns.multiple({"": found}, {"": of})
    assert full is not None
    assert [shards.factor, shards.left] == pytest.approx([*full.factors, full.left])
    assert shards.scaled(2.0).factor == pytest.approx(full.factors[0] / 2)
    alone = patterns.moments(None, of) + patterns.moments(found, None)
    assert [alone.found, alone.of, alone.dot] == pytest.approx([shards.found, shards.of, 0.0])


def test_a_factor_of_nearly_one_is_rounding() -> None:
    right = drawn((12,), 0)
    scale = patterns.factor(right.float().double(), right)
    assert scale is not None
    assert "but for rounding" in patterns.of_factor(scale, 2, "rank")


def searches_of_ranks(group: ProcessGroup) -> list[str]:
    """Rank 1 raises in its second part; afterwards all are together again."""

    def search() -> Found:
        group.together(lambda: 0)
        return Found(str(group.together(lambda: 1 // (1 - group.rank))))

    searches = {"the first module": search, "the next": lambda: Found("found")}
    return [located(what, each).text for what, each in searches.items()]


def test_an_error_while_ranks_locate_a_difference_is_described_by_all() -> None:
    (first, second), other = in_ranks(2, __file__, "searches_of_ranks")["searches_of_ranks"]
    assert [first, second] == other
    assert first.startswith("the first module: not located, rank 1 raised ZeroDivisionError: ")
    assert second == "found"

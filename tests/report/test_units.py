"""Shares and bytes as text."""

import pytest

from dpexp.report import units


@pytest.mark.parametrize(
    ("count", "full", "words"),
    [(1, 2, "half"), (265, 1060, "a quarter"), (3, 24, "1/8"), (7, 20, "35%"), (0, 9, "nothing")],
)
def test_a_share_is_in_words(count: int, full: int, words: str) -> None:
    assert units.fraction(count, full) == words


def test_a_share_of_bytes_has_one_unit() -> None:
    assert units.part(265, 1060) == "265 of 1,060 B"
    assert units.part(3_100_000, 12_400_000) == "3.1 of 12.4 MB"
    assert units.part(0, 64_000_000_000) == "0 of 64 GB"

"""Names and numbers as text."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpexp.config.words import merged
from dpexp.report import units


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (units.ms, {0.0: "0 ms", 0.042: "42 µs", 0.31: "0.31 ms", 12.34: "12.3 ms", 2500.0: "2.5 s"}),
        (units.size, {48: "48 B", 3280: "3.28 kB", 999_700: "1 MB", 256e6: "256 MB", 3e15: "3,000 TB"}),
        (units.flop, {640: "640 FLOP", 1.2e6: "1.2 MFLOP", 31e12: "31 TFLOP"}),
        (units.percent, {0.0: "0%", 0.0042: "0.4%", 0.0996: "10%", 0.42: "42%"}),
        (units.ratio, {0.0043: "0.0043x", 1.07: "1.07x", 12.0: "12x"}),
    ],
)
def test_numbers_are_shown_in_a_suitable_unit(function: object, texts: dict[float, str]) -> None:
    assert callable(function)
    assert {value: function(value) for value in texts} == texts


PARTS = st.sampled_from(["layers", "a", "0", "1", "2", "10"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map(".".join)


@given(st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=30, unique_by=lambda row: row[0]))
def test_merged_names_stand_for_exactly_the_given_ones(rows: list[tuple[str, int]]) -> None:
    """Each row is found again when the ranges of the merged names are written out."""

    def written_out(part: str) -> list[str]:
        if not re.fullmatch(r"[\d,-]+", part):
            return [part]
        ends = [piece.split("-") for piece in part.split(",")]
        return [str(index) for end in ends for index in range(int(end[0]), int(end[-1]) + 1)]

    found = [
        (".".join(parts), content)
        for name, content in merged(rows)
        for parts in itertools.product(*map(written_out, name.split(".")))
    ]
    assert sorted(found) == sorted(rows)
    assert len(merged(rows)) <= len(rows)

"""Names and numbers as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_times_and_sizes_are_shown_in_a_suitable_unit() -> None:
    assert [units.ms(value) for value in (0.0, 0.042, 0.31, 12.34, 2500.0)] == [
        "0 ms",
        "42 µs",
        "0.31 ms",
        "12.3 ms",
        "2.5 s",
    ]
    assert [units.size(value) for value in (48, 3280, 256e6, 3e12)] == [
        "48 B",
        "3.28 kB",
        "256 MB",
        "3,000 GB",
    ]
    assert [units.percent(value) for value in (0.0, 0.0042, 0.0996, 0.42)] == ["0%", "0.4%", "10%", "42%"]


def test_a_short_name_keeps_its_end_and_its_layer() -> None:
    name = "encoder.layers.11.self_attention.linear_projection"
    assert units.short_name(name, 40) == "…11.self_attention.linear_projection"
    assert units.short_name(name, 22) == "…11…linear_projection"
    assert units.short_name("a_long_name_without_parts", 12) == "…thout_parts"
    assert units.short_name(name, 50) == name


@given(
    st.lists(
        st.lists(
            st.sampled_from(["encoder", "11", "2", "self_attention", "cross_attention", "x"]), min_size=1
        ),
        max_size=6,
    )
)
def test_short_names_differ_where_names_do(several: list[list[str]]) -> None:
    names = [".".join(parts) for parts in several]
    short = units.short_names(names, 12)
    assert len(set(short)) == len(set(names))
    for name, found in zip(names, short, strict=True):
        assert found[-1] == name[-1]
        index = next((part for part in reversed(name.split(".")[:-1]) if part.isdecimal()), "")
        assert index in found

"""Numbers as text, consecutive ones joined."""

import pytest

from dpexp.config.errors import merged
from dpexp.config.ranges import be, consecutive, plural, range_or_list, ranges, span


@pytest.mark.parametrize(
    ("numbers", "joined", "at_once"),
    [
        ([], "", ""),
        ([7], "7", "7"),
        ([0, 1, 2], "0-2", "0-2"),
        ([0, 1, 2, 5], "0-2, 5", "0, 1, 2, 5"),
        ([4, 3], "4, 3", "4, 3"),
        ([1, 1, 2], "1, 1-2", "1, 1, 2"),
    ],
)
def test_consecutive_numbers_are_joined(numbers: list[int], joined: str, at_once: str) -> None:
    assert ranges(iter(numbers)) == joined
    assert range_or_list(iter(numbers)) == at_once


def test_one_of_them_is_singular() -> None:
    counted = [f"{plural(count, noun)} {be(count)}" for noun in ("thread", "batch") for count in (0, 1, 2)]
    assert counted == [
        "0 threads are",
        "1 thread is",
        "2 threads are",
        "0 batches are",
        "1 batch is",
        "2 batches are",
    ]


def test_a_run_is_in_the_order_of_its_numbers() -> None:
    assert consecutive([15, 16, 17, 0, 1]) == [range(15, 18), range(2)]
    assert [span(run, " to ") for run in consecutive([15, 16, 17, 0])] == ["15 to 17", "0"]


def test_modules_that_are_alike_have_a_range_only_if_none_is_missing() -> None:
    rows = [(f"layers.{index}.fc", 0) for index in (0, 1, 2, 4)]
    assert merged(rows[:3]) == [("layers.0-2.fc", 0)]
    assert merged(rows) == [("layers.0,1,2,4.fc", 0)]
